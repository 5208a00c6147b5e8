//! A broker with three doors: an open one for the harness, one that speaks TLS, one that asks for a password.
//!
//! Certificates are made with openssl when the broker is prepared, and end with the run: a root that signed the
//! broker's certificate, and a stranger that did not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::broker::Broker;
use crate::port;
use crate::shell::{give_to_server_user, run as run_command};

pub struct GuardedBroker {
    pub broker: Broker,
    /// `host:port` of the listener that speaks TLS.
    pub tls: String,
    /// `host:port` of the listener that asks for name and password.
    pub sasl: String,
    /// The root certificate that the broker's own was signed with.
    pub root: PathBuf,
    /// A root certificate that has nothing to do with it.
    pub stranger: PathBuf,
}

/// The one user that the broker knows.
pub const USER: &str = "relay";

impl GuardedBroker {
    /// Laid out, not started. `folder` is for the certificates, which the server's user must be able to read;
    /// `properties` are further lines for server.properties.
    #[track_caller]
    pub fn prepare(folder: &Path, password: &str, properties: &[&str]) -> GuardedBroker {
        let folder = folder.join("certificates");
        fs::create_dir(&folder).expect("create the folder of the certificates");
        let certificates = Certificates { folder };
        let (root, stranger) = (certificates.root("root"), certificates.root("stranger"));
        let key_store = certificates.of_broker("root");
        give_to_server_user(&certificates.folder);
        let [plain, tls, sasl, controller] = [(); 4].map(|()| port::free());
        let doors = format!(
            "listeners=PLAINTEXT://127.0.0.1:{plain},TLS://127.0.0.1:{tls},SASL://127.0.0.1:{sasl},\
             CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{plain},TLS://127.0.0.1:{tls},SASL://127.0.0.1:{sasl}\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,TLS:SSL,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             listener.name.tls.ssl.keystore.type=PEM\n\
             listener.name.tls.ssl.keystore.location={}\n\
             sasl.enabled.mechanisms=PLAIN\n\
             listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
             required user_{USER}=\"{password}\";",
            key_store.display()
        );
        let properties: Vec<&str> = doors.lines().chain(properties.iter().copied()).collect();
        GuardedBroker {
            broker: Broker::prepare_at(plain, &properties),
            tls: format!("127.0.0.1:{tls}"),
            sasl: format!("127.0.0.1:{sasl}"),
            root,
            stranger,
        }
    }
}

struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A root certificate and its key.
    #[track_caller]
    fn root(&self, name: &str) -> PathBuf {
        let certificate = self.file(&format!("{name}.pem"));
        run_command(
            new_key(Command::new("openssl").args(["req", "-x509", "-days", "2"]))
                .args(["-subj", &format!("/CN=outbox e2e {name}"), "-keyout"])
                .arg(self.file(&format!("{name}.key")))
                .arg("-out")
                .arg(&certificate),
        );
        certificate
    }

    /// A certificate for 127.0.0.1 signed by this root, in one file with its key, as Kafka takes it.
    #[track_caller]
    fn of_broker(&self, root: &str) -> PathBuf {
        let (key, request, certificate) = (
            self.file("broker.key"),
            self.file("broker.csr"),
            self.file("broker.pem"),
        );
        run_command(
            new_key(Command::new("openssl").arg("req"))
                .args(["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"])
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&request),
        );
        run_command(
            Command::new("openssl")
                .args([
                    "x509",
                    "-req",
                    "-days",
                    "2",
                    "-copy_extensions",
                    "copy",
                    "-CAcreateserial",
                ])
                .arg("-CA")
                .arg(self.file(&format!("{root}.pem")))
                .arg("-CAkey")
                .arg(self.file(&format!("{root}.key")))
                .arg("-in")
                .arg(&request)
                .arg("-out")
                .arg(&certificate),
        );
        let read = |file: &Path| fs::read_to_string(file).expect("openssl wrote it");
        let both = self.file("key-store.pem");
        fs::write(&both, read(&key) + &read(&certificate)).expect("write the key store");
        both
    }
}

fn new_key(command: &mut Command) -> &mut Command {
    command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
}
