//! The session's two producers.
//!
//! The fast one takes whatever is in order: a record that Kafka refuses fails it, so that nothing overtakes. The careful one, started when it is first needed, takes what may have been the reason:
//! one record at a time, whose refusal is its own. Which event goes where is the window's decision. They share one descriptor to sleep on.

use outbox_core::failure::Failure;
use outbox_core::window::Via;
use outbox_kafka::{
    Lane, LogLine, Producer, ProducerError, Record, Report, SendError, Settings, Teardown, TopicMetadata,
};
use std::os::fd::RawFd;

pub struct Lanes {
    fast: Producer,
    careful: Option<Producer>,
    settings: Settings,
}

impl Lanes {
    pub fn start(settings: Settings) -> Result<Lanes, ProducerError> {
        Ok(Lanes {
            fast: Producer::new(&settings, Lane::Fast)?,
            careful: None,
            settings,
        })
    }

    pub fn event_fd(&self) -> RawFd {
        self.fast.event_fd()
    }

    /// Takes reports of both, each into its own list. True: some are left.
    pub fn serve(&self, most: usize, fast: &mut Vec<Report>, careful: &mut Vec<Report>) -> bool {
        // The fast one first: it is the one that makes the descriptor unreadable.
        let left = self.fast.serve(most, fast);
        left | self
            .careful
            .as_ref()
            .is_some_and(|producer| producer.serve(most, careful))
    }

    pub fn send(&mut self, via: Via, record: &Record<'_>, partition: u32, ticket: u64) -> Result<(), SendError> {
        let producer = match via {
            Via::Fast => &self.fast,
            Via::Careful => match &mut self.careful {
                Some(producer) => producer,
                none => {
                    let started = self.fast.beside(&self.settings, Lane::Careful).map_err(|error| {
                        SendError::Failed(Failure::Producer {
                            text: error.to_string(),
                        })
                    })?;
                    none.insert(started)
                }
            },
        };
        producer.send(record, partition as i32, ticket)
    }

    pub fn ask_topic(&self, topic: &str, question: u64) {
        self.fast.ask_topic(topic, question);
    }

    pub fn topic_answers(&self) -> Vec<(u64, TopicMetadata)> {
        self.fast.topic_answers()
    }

    fn both(&self) -> impl Iterator<Item = &Producer> {
        std::iter::once(&self.fast).chain(&self.careful)
    }

    /// Why one of them sends nothing more.
    pub fn fatal(&self) -> Option<Failure> {
        self.both().find_map(Producer::fatal)
    }

    pub fn take_logs(&self) -> Vec<LogLine> {
        self.both().flat_map(Producer::take_logs).collect()
    }

    /// Why no broker can be reached. The fast one knows: it asks again and again until one answers. The careful one learns of an end only by what it
    /// sends, and it may have nothing to send.
    pub fn outage(&self) -> Option<String> {
        self.fast.outage()
    }

    pub fn shut_down(self) -> impl Iterator<Item = Teardown> {
        std::iter::once(self.fast).chain(self.careful).map(Producer::shut_down)
    }
}
