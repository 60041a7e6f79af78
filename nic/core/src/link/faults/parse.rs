//! Parses rules from text.

use super::rule::{Action, Budget, Corruption, FaultRule, Match, RuleError, Where};
use super::words::{
    CLASSES, CORRUPTIONS, ECNS, KEYWORDS, OPCODES, RARE_OPCODES, is_name, lookup, opcode_pattern,
};
use cc::quantity::parse_duration;
use qp::wire::mad::cm::Attribute;
use qp::{Psn, Qpn};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use time::Duration;

/// Why a text is not a rule: one line with the position, what would fit, and what was probably meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// The position in the text, in characters from 1.
    pub column: usize,
    /// The word at that position; empty at the end of the text.
    pub word: String,
    /// The fault, or the words that would fit.
    pub problem: String,
    /// The nearest word that would fit.
    pub suggestion: Option<&'static str>,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}, ", self.column)?;
        if self.word.is_empty() {
            write!(f, "at the end: {}", self.problem)?;
        } else {
            write!(f, "'{}': {}", self.word, self.problem)?;
        }
        match self.suggestion {
            Some(word) => write!(f, "; did you mean '{word}'?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ParseError {}

impl FromStr for FaultRule {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text, &|_| None)
    }
}

impl FaultRule {
    /// Parses a rule whose `where` may use names of hosts, which `host` translates.
    ///
    /// # Errors
    /// The first word that does not fit, or a number outside its range.
    pub fn parse(text: &str, host: &dyn Fn(&str) -> Option<IpAddr>) -> Result<Self, ParseError> {
        let mut parser = Parser { text, rest: text, host };
        let rule = parser.rule()?;
        rule.validate().map_err(|problem| ParseError {
            column: 1,
            word: text.trim().to_owned(),
            problem: problem.to_string(),
            suggestion: None,
        })?;
        Ok(rule)
    }
}

/// The message that a name means, in capitals or not.
fn attribute(name: &str) -> Option<Attribute> {
    Attribute::ALL.into_iter().find(|attribute| attribute.name().eq_ignore_ascii_case(name))
}

/// A word of the text, as a slice of it, so that its column is known.
type Word<'t> = &'t str;

struct Parser<'t> {
    text: &'t str,
    rest: &'t str,
    host: &'t dyn Fn(&str) -> Option<IpAddr>,
}

impl<'t> Parser<'t> {
    /// Returns the next word without consuming it.
    fn peek(&self) -> Option<Word<'t>> {
        self.rest.split_whitespace().next()
    }

    /// Takes the next word.
    fn next(&mut self) -> Option<Word<'t>> {
        let trimmed = self.rest.trim_start();
        let end = trimmed.find(char::is_whitespace).unwrap_or(trimmed.len());
        let (word, rest) = trimmed.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Takes the next word if it is this one.
    fn accept(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.next();
        }
        found
    }

    /// An error at a word of the text, or at its end.
    fn error(&self, word: Option<Word<'t>>, problem: impl Into<String>) -> ParseError {
        let bytes =
            word.map_or(self.text.trim_end().len(), |w| w.as_ptr().addr() - self.text.as_ptr().addr());
        ParseError {
            column: self.text.get(..bytes).map_or(0, |before| before.chars().count()) + 1,
            word: word.unwrap_or_default().to_owned(),
            problem: problem.into(),
            suggestion: None,
        }
    }

    /// An error at a word that none of `candidates` matches.
    fn unknown(
        &self,
        word: Word<'t>,
        problem: &str,
        candidates: impl Iterator<Item = &'static str>,
    ) -> ParseError {
        ParseError { suggestion: nearest(word, candidates), ..self.error(Some(word), problem) }
    }

    fn rule(&mut self) -> Result<FaultRule, ParseError> {
        let name = self.name()?;
        let place = self.place()?;
        let mut rule = FaultRule { name, place, ..FaultRule::drop() };
        let mut action = None;
        while let Some(word) = self.next() {
            if let Some(condition) = self.condition(word)? {
                rule.matches.push(condition);
            } else if let Some(found) = self.action(word)? {
                self.only_one(word, action.replace(found), "action")?;
            } else if let Some(found) = self.budget(word)? {
                self.only_one(word, rule.budget.replace(found), "budget")?;
            } else if word == "from" {
                let time = self.time("a time")?;
                self.only_one(word, rule.from.replace(time), "'from'")?;
            } else if word == "for" {
                let time = self.time("a time")?;
                self.only_one(word, rule.lasting.replace(time), "'for'")?;
            } else {
                return Err(self.no_such_word(word));
            }
        }
        let missing = "add an action: drop, dup, delay, reorder, corrupt, mark ce or pause=";
        rule.action = action.ok_or_else(|| self.error(None, missing))?;
        Ok(rule)
    }

    fn only_one<T>(&self, word: Word<'t>, before: Option<T>, what: &str) -> Result<(), ParseError> {
        match before {
            Some(_) => Err(self.error(Some(word), format!("a rule has only one {what}"))),
            None => Ok(()),
        }
    }

    fn no_such_word(&self, word: Word<'t>) -> ParseError {
        let tables = CLASSES.iter().map(|(w, _)| *w).chain(OPCODES.iter().map(|(w, _)| *w));
        let candidates = KEYWORDS.into_iter().chain(tables).chain(RARE_OPCODES.iter().map(|(w, _)| *w));
        let error = self.unknown(word, "unknown word", candidates);
        if error.suggestion.is_some() {
            return error;
        }
        self.error(Some(word), "unknown word; a rule reads like 'tx data psn=#3 drop once'")
    }

    /// `name:`
    fn name(&mut self) -> Result<Option<String>, ParseError> {
        // An IPv6 address may end with a colon as well.
        let word = self.peek().filter(|word| !word.contains(['<', '>']));
        let Some(name) = word.and_then(|word| word.strip_suffix(':')) else { return Ok(None) };
        if !is_name(name) {
            return Err(self.error(self.peek(), RuleError::Name(name.to_owned()).to_string()));
        }
        self.next();
        Ok(Some(name.to_owned()))
    }

    fn place(&mut self) -> Result<Where, ParseError> {
        let Some(word) = self.peek() else { return Ok(Where::Any) };
        let place = if word == "*" {
            Where::Any
        } else if word == "tx" {
            Where::Tx { to: None }
        } else if word == "rx" {
            Where::Rx { from: None }
        } else if word.starts_with("size>") || word.starts_with("size<") {
            return Ok(Where::Any);
        } else if let Some(peer) = word.strip_prefix("tx>") {
            Where::Tx { to: self.end(peer)? }
        } else if let Some(peer) = word.strip_prefix("rx<") {
            Where::Rx { from: self.end(peer)? }
        } else if let Some((a, b)) = word.split_once("<>") {
            Where::Path { from: self.end(a)?, to: self.end(b)?, both_ways: true }
        } else if let Some((a, b)) = word.split_once('>') {
            Where::Path { from: self.end(a)?, to: self.end(b)?, both_ways: false }
        } else {
            return Ok(Where::Any);
        };
        self.next();
        Ok(place)
    }

    /// One end of a path.
    fn end(&self, word: Word<'t>) -> Result<Option<IpAddr>, ParseError> {
        if word == "*" {
            return Ok(None);
        }
        let address = word.parse().ok().or_else(|| (self.host)(word));
        let problem = "neither an IP address nor the name of a host";
        address.map(|ip| Some(ip.to_canonical())).ok_or_else(|| self.error(Some(word), problem))
    }

    fn condition(&self, word: Word<'t>) -> Result<Option<Match>, ParseError> {
        if let Some(class) = lookup(&CLASSES, word) {
            return Ok(Some(Match::Class(class)));
        }
        if let Some(pattern) = opcode_pattern(word) {
            return Ok(Some(Match::Opcode(pattern)));
        }
        let Some(at) = word.find(['=', '>', '<']) else { return Ok(None) };
        let (key, value) = word.split_at(at + 1);
        Ok(Some(match key {
            "qp=" => match value.strip_prefix('#') {
                Some(n) => Match::NthQp(self.number(n, u64::from(u32::MAX))? as u32),
                None => Match::Qp(Qpn::new(self.number(value, u64::from(Psn::MAX.value()))? as u32)),
            },
            "psn=" => match value.strip_prefix('#') {
                Some(n) => Match::RelativePsn(self.number(n, u64::from(Psn::MAX.value()))? as u32),
                None => Match::Psn(Psn::new(self.number(value, u64::from(Psn::MAX.value()))? as u32)),
            },
            "try=" => Match::Try(self.number(value, u64::from(u32::MAX))? as u32),
            "nth=" => Match::Nth(self.number(value, u64::MAX)?),
            "every=" => Match::Every(self.number(value, u64::MAX)?),
            "size>" => Match::LargerThan(self.number(value, u64::from(u32::MAX))? as u32),
            "size<" => Match::SmallerThan(self.number(value, u64::from(u32::MAX))? as u32),
            "ecn=" => match lookup(&ECNS, value) {
                Some(ecn) => Match::Ecn(ecn),
                None => {
                    return Err(self.unknown(
                        value,
                        "choose ce, ect0, ect1 or not",
                        ECNS.iter().map(|(w, _)| *w),
                    ));
                }
            },
            "cm=" => match attribute(value) {
                Some(attribute) => Match::Cm(attribute),
                None => {
                    let names = Attribute::ALL.map(Attribute::name);
                    let problem = format!("choose {}", names.join(", "));
                    return Err(self.unknown(value, &problem, names.into_iter()));
                }
            },
            _ => return Ok(None),
        }))
    }

    fn action(&mut self, word: Word<'t>) -> Result<Option<Action>, ParseError> {
        Ok(Some(match word {
            "drop" => Action::Drop,
            "dup" => Action::Duplicate(self.copies()?),
            "delay" => {
                let (by, jitter) = self.delay()?;
                Action::Delay { by, jitter }
            }
            "reorder" => {
                let word = self.expect("the number of packets that overtake")?;
                Action::Reorder(self.number(word, u64::from(u32::MAX))? as u32)
            }
            "corrupt" => {
                let what = "choose icrc, payload, header or bit=N";
                let word = self.expect("icrc, payload, header or bit=N")?;
                Action::Corrupt(match word.strip_prefix("bit=") {
                    Some(n) => Corruption::Bit(self.number(n, u64::from(u32::MAX))? as u32),
                    None => lookup(&CORRUPTIONS, word)
                        .ok_or_else(|| self.unknown(word, what, CORRUPTIONS.iter().map(|(w, _)| *w)))?,
                })
            }
            "mark" => {
                let word = self.expect("'ce'")?;
                if word != "ce" {
                    return Err(self.unknown(word, "the only mark is 'ce'", std::iter::once("ce")));
                }
                Action::MarkCe
            }
            _ => match word.strip_prefix("pause=") {
                Some(priorities) => Action::Pause(self.priorities(priorities)?),
                None => return Ok(None),
            },
        }))
    }

    /// Priorities with commas between them, as bits.
    fn priorities(&self, words: Word<'t>) -> Result<u8, ParseError> {
        words.split(',').try_fold(0, |all, word| Ok(all | 1 << self.number(word, 7)?))
    }

    /// The number of copies, unless what follows is a budget such as `3 times`.
    fn copies(&mut self) -> Result<u32, ParseError> {
        let Some(word) = self.peek().filter(|w| w.starts_with(|c: char| c.is_ascii_digit())) else {
            return Ok(1);
        };
        let before = self.rest;
        self.next();
        if self.peek() == Some("times") {
            self.rest = before;
            return Ok(1);
        }
        Ok(self.number(word, u64::from(u32::MAX))? as u32)
    }

    /// A time and perhaps its jitter: `80us`, `80us +-10us`, `80us+-10us`.
    fn delay(&mut self) -> Result<(Duration, Duration), ParseError> {
        let word = self.expect("a time")?;
        if let Some((by, jitter)) = word.split_once("+-") {
            return Ok((self.duration(by)?, self.duration(jitter)?));
        }
        let by = self.duration(word)?;
        let Some(jitter) = self.peek().and_then(|w| w.strip_prefix("+-")) else {
            return Ok((by, Duration::ZERO));
        };
        self.next();
        Ok((by, self.duration(jitter)?))
    }

    fn budget(&mut self, word: Word<'t>) -> Result<Option<Budget>, ParseError> {
        if word == "once" {
            return Ok(Some(Budget::Times(1)));
        }
        if word == "always" {
            return Ok(Some(Budget::Always));
        }
        if let Some(p) = word.strip_prefix("p=") {
            let p = p.parse().map_err(|_| self.error(Some(word), "p is a number from 0 to 1"))?;
            return Ok(Some(Budget::Probability(p)));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let n = self.number(word, u64::MAX)?;
            if self.accept("times") {
                return Ok(Some(Budget::Times(n)));
            }
            return Err(self.error(Some(word), "write 'N times' for a number of times"));
        }
        Ok(None)
    }

    fn expect(&mut self, what: &str) -> Result<Word<'t>, ParseError> {
        self.next().ok_or_else(|| self.error(None, format!("expected {what}")))
    }

    /// A number, decimal or with `0x`.
    fn number(&self, word: Word<'t>, max: u64) -> Result<u64, ParseError> {
        let parsed = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        match parsed {
            Ok(n) if n <= max => Ok(n),
            Ok(_) => Err(self.error(Some(word), format!("the maximum is {max}"))),
            Err(_) => Err(self.error(Some(word), "expected a number")),
        }
    }

    fn time(&mut self, what: &str) -> Result<Duration, ParseError> {
        let word = self.expect(what)?;
        self.duration(word)
    }

    /// A decimal number with a unit, exact to the nanosecond.
    fn duration(&self, word: Word<'t>) -> Result<Duration, ParseError> {
        let problem = "expected a time such as 80us, 1.5ms or 2s";
        parse_duration(word).map_err(|_| self.error(Some(word), problem))
    }
}

/// The candidate that is most like the word, or like its key if it has one.
fn nearest(word: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let key_end = word.find(['=', '>', '<']).map_or(word.len(), |at| at + 1);
    cc::nearest(word.get(..key_end).unwrap_or(word), candidates)
}
