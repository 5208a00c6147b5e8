//! The Kafka client's properties: outbox_ext.kafka_options and outbox_ext.kafka_options_file, together. Errors name a property, never a value.

use crate::guc::Settings;

/// All properties, or why they cannot be used.
pub fn gather(settings: &Settings) -> Result<Vec<(String, String)>, String> {
    let mut options = outbox_kafka::parse_options(&settings.kafka_options)
        .map_err(|error| format!("outbox_ext.kafka_options: {error}"))?;
    if !settings.kafka_options_file.is_empty() {
        let file = &settings.kafka_options_file;
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("could not read outbox_ext.kafka_options_file \"{file}\": {error}"))?;
        let fail = |error| format!("outbox_ext.kafka_options_file: {error}");
        let from_file = outbox_kafka::parse_options(&without_comments(&text)).map_err(fail)?;
        outbox_kafka::check_options(&from_file).map_err(fail)?;
        if let Some((key, _)) = from_file
            .iter()
            .find(|(key, _)| options.iter().any(|(known, _)| known == key))
        {
            return Err(format!(
                "property \"{key}\" stands in both outbox_ext.kafka_options and outbox_ext.kafka_options_file"
            ));
        }
        options.extend(from_file);
    }
    Ok(options)
}

fn without_comments(text: &str) -> String {
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
}
