//! Topic names: the template of `outbox_ext.topic` and Kafka's rule for names.

use std::fmt;

/// Kafka's limit, `org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH`.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// A parsed template such as `outbox.event.{aggregate_type}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    AggregateType,
    EventType,
}

impl TopicTemplate {
    /// Placeholders are `{aggregate_type}` and `{event_type}`; all other text must be legal in a
    /// topic name, so a brace cannot be meant literally.
    pub fn parse(template: &str) -> Result<TopicTemplate, TemplateError> {
        if template.is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut parts = Vec::new();
        let mut rest = template;
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('{') {
                let (name, after) = inside.split_once('}').ok_or(TemplateError::Unclosed)?;
                parts.push(match name {
                    "aggregate_type" => Part::AggregateType,
                    "event_type" => Part::EventType,
                    _ => return Err(TemplateError::Placeholder(shortened(name))),
                });
                rest = after;
            } else {
                let (text, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
                if let Some(character) = text.chars().find(|&c| !is_legal(c)) {
                    return Err(TemplateError::Character(character));
                }
                parts.push(Part::Text(text.into()));
                rest = after;
            }
        }
        Ok(TopicTemplate { parts })
    }

    pub fn resolve(&self, aggregate_type: &str, event_type: &str) -> String {
        let mut name = String::new();
        self.resolve_into(&mut name, aggregate_type, event_type);
        name
    }

    /// Replaces what is in `name`, so that one buffer serves many events. The result still has to
    /// pass [`check_topic`].
    pub fn resolve_into(&self, name: &mut String, aggregate_type: &str, event_type: &str) {
        name.clear();
        for part in &self.parts {
            name.push_str(match part {
                Part::Text(text) => text,
                Part::AggregateType => aggregate_type,
                Part::EventType => event_type,
            });
        }
    }
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Empty,
    Unclosed,
    Placeholder(String),
    Character(char),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Empty => f.write_str("topic template is empty"),
            TemplateError::Unclosed => f.write_str("topic template has an unclosed \"{\""),
            TemplateError::Placeholder(name) => {
                write!(f, "topic template has an unknown placeholder \"{{{name}}}\"")
            }
            TemplateError::Character(character) => {
                write!(f, "topic template contains the illegal character {character:?}")
            }
        }
    }
}

impl std::error::Error for TemplateError {}

impl TemplateError {
    pub fn hint(&self) -> &'static str {
        "Use the placeholders {aggregate_type} and {event_type}, and otherwise only the characters a-z, A-Z, 0-9, \".\", \"_\" and \"-\"."
    }
}

/// Kafka's rule for topic names: 1 to 249 of the characters [a-zA-Z0-9._-], and neither "." nor "..".
pub fn check_topic(name: &str) -> Result<(), TopicNameError> {
    if name.is_empty() {
        return Err(TopicNameError::Empty);
    }
    if name == "." || name == ".." {
        return Err(TopicNameError::Dots(name.to_owned()));
    }
    if let Some(character) = name.chars().find(|&c| !is_legal(c)) {
        return Err(TopicNameError::Character {
            name: shortened(name),
            character,
        });
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return Err(TopicNameError::TooLong {
            name: shortened(name),
            bytes: name.len(),
        });
    }
    Ok(())
}

/// Why a text cannot be a topic's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicNameError {
    Empty,
    Dots(String),
    Character { name: String, character: char },
    TooLong { name: String, bytes: usize },
}

impl fmt::Display for TopicNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicNameError::Empty => f.write_str("topic name is empty"),
            TopicNameError::Dots(name) => write!(f, "topic name \"{name}\" is not allowed"),
            TopicNameError::Character { name, character } => {
                write!(f, "topic name \"{name}\" contains the illegal character {character:?}")
            }
            TopicNameError::TooLong { name, bytes } => write!(
                f,
                "topic name \"{name}\" is too long: {bytes} bytes, limit {TOPIC_NAME_BYTES_MAX}"
            ),
        }
    }
}

impl std::error::Error for TopicNameError {}

impl TopicNameError {
    pub fn hint(&self) -> &'static str {
        "A Kafka topic name is 1 to 249 of the characters a-z, A-Z, 0-9, \".\", \"_\" and \"-\", and neither \".\" nor \"..\"."
    }
}

fn is_legal(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-')
}

/// Error texts must not grow with their input.
fn shortened(text: &str) -> String {
    const SHOWN_CHARACTERS_MAX: usize = 64;
    match text.char_indices().nth(SHOWN_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_resolves() {
        let template = TopicTemplate::parse("outbox.event.{aggregate_type}").unwrap();
        assert_eq!(template.resolve("Order", "OrderCreated"), "outbox.event.Order");
        let template = TopicTemplate::parse("{event_type}-{aggregate_type}_{event_type}").unwrap();
        assert_eq!(template.resolve("a", "e"), "e-a_e");
        let mut name = "left over".to_owned();
        TopicTemplate::parse("fixed").unwrap().resolve_into(&mut name, "a", "e");
        assert_eq!(name, "fixed");
        // A value is never taken for a template.
        let template = TopicTemplate::parse("{aggregate_type}").unwrap();
        assert_eq!(template.resolve("{event_type}", "e"), "{event_type}");
    }

    #[test]
    fn a_bad_template_is_refused() {
        let error = |template: &str| TopicTemplate::parse(template).unwrap_err();
        assert_eq!(error(""), TemplateError::Empty);
        assert_eq!(error("a.{aggregate_type"), TemplateError::Unclosed);
        assert_eq!(error("a.{aggregate}"), TemplateError::Placeholder("aggregate".into()));
        assert_eq!(error("{}"), TemplateError::Placeholder(String::new()));
        assert_eq!(
            error("{{aggregate_type}}").to_string(),
            "topic template has an unknown placeholder \"{{aggregate_type}\""
        );
        assert_eq!(error("a}"), TemplateError::Character('}'));
        assert_eq!(error("my events.{event_type}"), TemplateError::Character(' '));
    }

    #[test]
    fn names_follow_kafkas_rule() {
        let longest = "a".repeat(249);
        for name in ["a", "...", "._-", "Order.created_V2-x", longest.as_str()] {
            assert_eq!(check_topic(name), Ok(()), "{name}");
        }
        let too_long = "a".repeat(250);
        for name in [
            "",
            ".",
            "..",
            "Order Line",
            "a/b",
            "Zürich",
            " lead",
            "x;y",
            "a\0",
            too_long.as_str(),
        ] {
            assert!(check_topic(name).is_err(), "{name}");
        }
    }

    #[test]
    fn an_error_names_value_and_limit_and_stays_short() {
        let error = check_topic("Order Line").unwrap_err();
        assert_eq!(
            error.to_string(),
            "topic name \"Order Line\" contains the illegal character ' '"
        );
        let error = check_topic(&"a".repeat(10_000)).unwrap_err().to_string();
        assert!(error.contains("10000 bytes, limit 249"), "{error}");
        assert!(error.len() < 150, "{error}");
    }
}
