-- The settings: names, units, ranges, who may change them and where.
CREATE DATABASE contract_settings;
\c contract_settings
CREATE EXTENSION outbox_ext;

SELECT name, setting, unit, context, vartype, min_val, max_val FROM pg_settings WHERE name LIKE 'outbox\_ext.%' ORDER BY name COLLATE "C";
SELECT name FROM pg_settings WHERE name LIKE 'outbox\_ext.%' AND coalesce(short_desc, '') = '';

-- The prefix is ours: a misspelt name is an error and no silent placeholder.
SET outbox_ext.broker = 'localhost:9092';
\echo :SQLSTATE
ALTER SYSTEM SET outbox_ext.batchsize = 10;

-- What may differ per database.
ALTER DATABASE contract_settings SET outbox_ext.enabled = off;
ALTER DATABASE contract_settings SET outbox_ext.topic = 'shop.{aggregate_type}';
ALTER DATABASE contract_settings SET outbox_ext.kafka_options = 'client.id=shop';
ALTER DATABASE contract_settings SET outbox_ext.retention = '3d';
\c contract_settings
SHOW outbox_ext.enabled;
SHOW outbox_ext.topic;
SHOW outbox_ext.retention;
ALTER DATABASE contract_settings RESET ALL;
\c contract_settings
-- The rest belongs to the server.
ALTER DATABASE contract_settings SET outbox_ext.batch_size = 10;
\echo :SQLSTATE
SET outbox_ext.lease_duration = '10s';
\echo :SQLSTATE

-- Values out of range, or that could not work.
SET outbox_ext.enabled = 'perhaps';
SET outbox_ext.topic = '';
\echo :SQLSTATE
SET outbox_ext.topic = 'shop.{unknown}';
SET outbox_ext.topic = 'shop {aggregate_type}';
SET outbox_ext.topic = 'shop.{aggregate_type';
SET outbox_ext.topic = 'shop';
SHOW outbox_ext.topic;
SET outbox_ext.brokers = 'localhost:9092,kafka-2:9093';
SET outbox_ext.brokers = '';
SET outbox_ext.retention = '-2';
ALTER SYSTEM SET outbox_ext.batch_size = 0;
ALTER SYSTEM SET outbox_ext.batch_size = 'many';
ALTER SYSTEM SET outbox_ext.batch_bytes = 0;
ALTER SYSTEM SET outbox_ext.max_in_flight_bytes = 0;
ALTER SYSTEM SET outbox_ext.lease_duration = 0;
ALTER SYSTEM SET outbox_ext.poll_interval = 0;
ALTER SYSTEM SET outbox_ext.settle_interval = -1;
ALTER SYSTEM SET outbox_ext.max_message_bytes = 0;
ALTER SYSTEM SET outbox_ext.retry_backoff = 0;
ALTER SYSTEM SET outbox_ext.retry_backoff_max = 0;
ALTER SYSTEM SET outbox_ext.max_attempts = 0;

-- A Kafka option that would break a promise is refused by name. What only librdkafka can judge is left to the relay.
SET outbox_ext.kafka_options = 'message.timeout.ms=30000';
\echo :SQLSTATE
SET outbox_ext.kafka_options = 'acks=1';
SET outbox_ext.kafka_options = 'request.required.acks=0';
SET outbox_ext.kafka_options = 'enable.idempotence=false';
SET outbox_ext.kafka_options = 'linger.ms=5, acks = 1';
SET outbox_ext.kafka_options = 'bootstrap.servers=elsewhere:9092';
SET outbox_ext.kafka_options = 'no equals sign';
SET outbox_ext.kafka_options = 'security.protocol=SASL_SSL, sasl.password=secret';

-- Secrets are shown to superusers only; nobody else changes what is the server's.
CREATE ROLE contract_user;
SET ROLE contract_user;
SHOW outbox_ext.kafka_options;
\echo :SQLSTATE
SHOW outbox_ext.kafka_options_file;
SELECT count(*) FROM pg_settings WHERE name LIKE 'outbox\_ext.kafka\_options%';
SHOW outbox_ext.topic;
SET outbox_ext.topic = 'mine.{aggregate_type}';
\echo :SQLSTATE
SET outbox_ext.brokers = 'mine:9092';
SET outbox_ext.enabled = off;
RESET ROLE;
DROP ROLE contract_user;

\c outbox_sql
DROP DATABASE contract_settings WITH (FORCE);
