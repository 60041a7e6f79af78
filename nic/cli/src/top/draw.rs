//! The picture.

use super::model::{Line, Model};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

/// The columns of programs: their heads and widths.
const PROGRAMS: [(&str, u16); 14] = [
    ("PID", 8),
    ("USER", 9),
    ("CONTAINER", 12),
    ("PROGRAM", 16),
    ("ADDRESS", 16),
    ("SLOT", 4),
    ("QPS", 5),
    ("TX b/s", 7),
    ("RX b/s", 7),
    ("TX pkt/s", 8),
    ("RETX/s", 7),
    ("CNP/s", 6),
    ("WAIT/s", 7),
    ("DROP/s", 7),
];

/// The columns of queue pairs.
const QUEUE_PAIRS: [(&str, u16); 11] = [
    ("LQPN", 8),
    ("TYPE", 4),
    ("STATE", 5),
    ("PEER", 16),
    ("RQPN", 8),
    ("TX pkt/s", 8),
    ("RX pkt/s", 8),
    ("SENDS", 6),
    ("RECVS", 6),
    ("RETRIES", 7),
    ("LAST FAILURE", 50),
];

/// A number with at most four characters before its unit: `999`, `1.2k`, `40.1M`.
pub(super) fn short(number: f64) -> String {
    // The sum of nothing is -0.
    let number = number + 0.0;
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = units.iter().find(|(size, _)| number >= *size);
    unit.map_or_else(|| format!("{number:.0}"), |(size, unit)| format!("{:.1}{unit}", number / size))
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let programs = u16::try_from(model.lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let [head, problem, above, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Max(programs.max(3)),
        Constraint::Min(3),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(summary(model)), head);
    let (text, style) = match model.problem() {
        Some(problem) => (problem, Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD)),
        None if model.lines.is_empty() => {
            (format!("no program runs in {}: start one with `rnic run`", model.places), Style::new())
        }
        None => ("no problem".to_owned(), Style::new().fg(Color::Green)),
    };
    frame.render_widget(Paragraph::new(text).style(style).wrap(Wrap { trim: true }), problem);
    let rows = model.lines.iter().map(|line| Row::new(program(line).map(Cell::from)));
    let mut state = TableState::new().with_selected((!model.lines.is_empty()).then_some(model.chosen));
    let chosen = Style::new().add_modifier(Modifier::REVERSED);
    let table =
        Table::new(rows, PROGRAMS.map(|(_, width)| width)).header(heads(PROGRAMS.map(|(name, _)| name)));
    frame.render_stateful_widget(table.row_highlight_style(chosen), above, &mut state);
    if let Some(line) = model.lines.get(model.chosen) {
        let rows = line.queue_pairs().iter().map(|qp| {
            let cells = Row::new(queue_pair(line, qp).map(Cell::from));
            if qp.last_failure.is_some() { cells.style(Style::new().fg(Color::Red)) } else { cells }
        });
        let table = Table::new(rows, QUEUE_PAIRS.map(|(_, width)| width));
        frame.render_widget(table.header(heads(QUEUE_PAIRS.map(|(name, _)| name))), below);
    }
}

fn heads<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    Row::new(names.map(Cell::from)).style(Style::new().add_modifier(Modifier::BOLD))
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// All programs together.
fn summary(model: &Model) -> Text<'static> {
    let sum = |counter: &str| model.lines.iter().filter_map(|line| line.rate(counter)).sum::<f64>();
    let queue_pairs: usize = model.lines.iter().map(|line| line.queue_pairs().len()).sum();
    let clock = nix::sys::time::TimeSpec::from(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default(),
    );
    let seconds = clock.tv_sec() % 86_400;
    Text::from(format!(
        "rnic top {:02}:{:02}:{:02} UTC: {}, {}, {}b/s sent, {}b/s received",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        counted(model.lines.len(), "program"),
        counted(queue_pairs, "queue pair"),
        short(sum("tx_bytes") * 8.0),
        short(sum("rx_bytes") * 8.0),
    ))
}

fn program(line: &Line) -> [String; PROGRAMS.len()] {
    let now = &line.now;
    let bits = |counter: &str| rate(line.rate(counter).map(|bytes| bytes * 8.0));
    [
        now.pid.to_string(),
        now.user.clone(),
        now.container.clone().unwrap_or_else(|| "-".to_owned()),
        now.comm.clone(),
        now.address.to_string(),
        now.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string()),
        line.queue_pairs().len().to_string(),
        bits("tx_bytes"),
        bits("rx_bytes"),
        rate(line.rate("tx_packets")),
        rate(line.rate("retransmitted_pkts")),
        rate(line.rate("rp_cnp_handled")),
        rate(line.stalls()),
        rate(line.drops()),
    ]
}

fn queue_pair(line: &Line, qp: &rnic::engine::QpSnapshot) -> [String; QUEUE_PAIRS.len()] {
    let (peer, rqpn) = qp.peer.map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |(address, qpn)| (address.to_string(), format!("{qpn:#08x}")),
    );
    let rates = line.qp_rates(qp);
    [
        format!("{:#08x}", qp.qpn),
        qp.qp_type.to_string(),
        qp.state.to_string(),
        peer,
        rqpn,
        rate(rates.map(|(sent, _)| sent)),
        rate(rates.map(|(_, received)| received)),
        qp.sends.to_string(),
        qp.recvs.to_string(),
        qp.retries_left.to_string(),
        qp.last_failure.clone().unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{after, seen};
    use super::super::text_of;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use rnic::engine::QpSnapshot;
    use rnic::process::PublishedQueuePairs;

    #[test]
    fn numbers_are_short() {
        let all = [0.4, 999.0, 1200.0, 40_100_000.0, 25e9].map(short);
        assert_eq!(all, ["0", "999", "1.2k", "40.1M", "25.0G"]);
        assert_eq!(short([0.0_f64; 0].iter().sum()), "0");
    }

    #[test]
    fn the_picture_holds_the_program_its_queue_pairs_and_the_problem() {
        let queue_pairs = |psn: u32| -> PublishedQueuePairs {
            let qp = QpSnapshot {
                qpn: 0x30_0012,
                qp_type: "RC".into(),
                state: "RTS".into(),
                peer: Some(([10, 0, 0, 2].into(), 0x11)),
                next_psn: psn,
                unacked_psn: psn,
                expected_psn: 5,
                sends: 3,
                recvs: 16,
                retries_left: 7,
                rnr_retries_left: 7,
                last_failure: None,
            };
            let text = serde_json::json!({
                "sequence": 1, "device": "rnic0", "address": "10.0.0.1", "pid": 7, "comm": "rping",
                "queue_pairs": [qp], "more": 0, "end": 1,
            });
            serde_json::from_value(text).expect("what is published")
        };
        let program = |n: u64, psn| {
            let counters = [("tx_bytes", n * 1000), ("tx_packets", n), ("send_rnr_err", n)];
            crate::programs::Seen { queue_pairs: Some(queue_pairs(psn)), ..seen(7, &counters) }
        };
        // Around the end of the PSNs.
        let mut model = after(vec![program(0, 0xff_ffff)], vec![program(500, 9)]);
        let mut terminal = Terminal::new(TestBackend::new(150, 20)).expect("a picture");
        terminal.draw(|frame| draw(frame, &mut model)).expect("a picture");
        let text = text_of(terminal.backend().buffer());
        let line =
            |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{text}"));
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(text.contains("1 program, 1 queue pair, 2.0Mb/s sent"), "{text}");
        assert_eq!(
            words(line("alice")),
            ["7", "alice", "-", "rping", "10.0.0.1", "3", "1", "2.0M", "0", "250", "0", "0", "0", "0"]
        );
        assert_eq!(
            words(line("0x300012")),
            ["0x300012", "RC", "RTS", "10.0.0.2", "0x000011", "5", "0", "3", "16", "7"]
        );
        assert!(
            text.contains(
                "it posts too few receives: its peers have to wait (RNR NAK) (send_rnr_err, 250.0/s)"
            )
        );
    }
}
