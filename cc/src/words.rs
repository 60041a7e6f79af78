//! Suggestions for misspelt words.

/// The candidate most similar to `word`, if any is similar: at most half of the letters differ (a different case
/// alone does not count).
///
/// ```
/// assert_eq!(cc::nearest("bufer", ["rate", "buffer"]), Some("buffer"));
/// assert_eq!(cc::nearest("colour", ["rate", "buffer"]), None);
/// ```
#[must_use]
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &candidate.to_lowercase()), candidate))
        .min()
        .filter(|(distance, _)| *distance * 2 <= word.chars().count())
        .map(|(_, candidate)| candidate)
}

/// Why `word` is not one of `known`, for an error: the word that was probably meant, or else all of them.
///
/// ```
/// assert_eq!(cc::unknown("bufer", &["rate", "buffer"]), "did you mean `buffer`?");
/// assert_eq!(cc::unknown("colour", &["rate", "buffer"]), "choose `rate` or `buffer`");
/// ```
#[must_use]
pub fn unknown(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("choose {}", choice(known)),
    }
}

/// A list of words for a sentence: `` `a`, `b` or `c` ``.
#[must_use]
pub fn choice(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_has_a_suggestion_and_a_foreign_one_has_none() {
        let words = ["rate", "buffer", "receiver_rate", "ib-credits"];
        for (word, meant) in [
            ("bufer", "buffer"),
            ("reciever_rate", "receiver_rate"),
            ("RATE", "rate"),
            ("IB-credit", "ib-credits"),
        ] {
            assert_eq!(nearest(word, words), Some(meant));
        }
        assert_eq!(nearest("mtu", words), None);
        assert_eq!(nearest("", words), None);
    }
}
