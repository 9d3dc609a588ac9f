//! Times in variables and addresses.

use std::time::Duration;

/// Parses a time with its unit, such as `500ms`, `2s` or `7d`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(milliseconds).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("0s", 0.0), ("500ms", 0.5), (" 2 s", 2.0), ("7d", 604_800.0)] {
            let time = parse_duration(text).expect(text);
            assert_eq!(time.as_secs_f64(), seconds, "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5s", "1y", "99999999999999999999s", "300000000000d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
