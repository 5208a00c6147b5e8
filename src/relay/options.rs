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
        let fail = |error: String| format!("outbox_ext.kafka_options_file: {error}");
        let from_file = parse_file(&text).map_err(fail)?;
        outbox_kafka::check_options(&from_file).map_err(|error| fail(error.to_string()))?;
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

/// One `key=value` a line, as it stands: a value may have commas and blanks. An error names the line and nothing that stands in it.
fn parse_file(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut options: Vec<(String, String)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_key = |key: &str| {
            !key.is_empty()
                && key
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
        };
        match line.split_once('=') {
            Some((key, value)) if is_key(key.trim()) => {
                let key = key.trim();
                if options.iter().any(|(known, _)| known == key) {
                    return Err(format!("line {number} sets property \"{key}\" again"));
                }
                options.push((key.to_owned(), value.trim().to_owned()));
            }
            _ => return Err(format!("line {number} is not key=value")),
        }
    }
    Ok(options)
}
