//! `rnic top`: the programs that run on rnic, live.
//!
//! `model` computes rates from what programs publish, `problem` picks the most serious problem, and `draw` draws the screen. The
//! same screen is printed as text if the output is not a terminal.

mod draw;
mod model;
mod problem;

use crate::programs::{Filter, Places};
use model::Model;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::error::Error;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The size of the picture where there is no terminal.
const WIDTH: u16 = 150;
const HEIGHT: u16 = 40;

/// Watch the programs that run on rnic.
///
/// Shows this user's programs and those at the daemon: their rates, retransmissions, congestion notifications (CNPs) and stalls
/// (WAIT: for credit, window, pace or pause); the queue pairs of the selected program; and the most serious problem. The up and
/// down keys select a program, and q quits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds between updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = crate::number::period)]
    interval: Duration,
    /// Print each update as text. This is the default if the output is not a terminal.
    #[arg(short, long)]
    batch: bool,
    /// Quit after this many updates.
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = crate::number::whole::<u32>)]
    count: Option<u32>,
    #[command(flatten)]
    filter: Filter,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let places = Places::find();
    if args.batch || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        print(args, &places)?;
    } else {
        let mut terminal = ratatui::try_init()?;
        let watched = watch(args, &places, &mut terminal);
        ratatui::restore();
        watched?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes another look.
fn look(args: &Args, places: &Places, model: &mut Model) -> Result<(), Box<dyn Error>> {
    let mut warning = None;
    let mut seen = places.look(|error| warning = Some(error.to_string()))?;
    seen.retain(|one| one.running && args.filter.takes(one));
    for published in seen.iter_mut().filter_map(|one| one.queue_pairs.as_mut()) {
        published.queue_pairs.retain(|qp| args.filter.takes_qp(qp));
    }
    model.update(seen, warning, Instant::now());
    Ok(())
}

/// Pictures as text.
fn print(args: &Args, places: &Places) -> Result<(), Box<dyn Error>> {
    let mut model = Model::new(places.describe());
    let mut left = args.count;
    // Rates need two looks: the first is not shown.
    look(args, places, &mut model)?;
    while left != Some(0) {
        std::thread::sleep(args.interval);
        look(args, places, &mut model)?;
        let mut terminal = Terminal::new(TestBackend::new(WIDTH, HEIGHT))?;
        terminal.draw(|frame| draw::draw(frame, &mut model))?;
        match io::stdout().write_all(text_of(terminal.backend().buffer()).as_bytes()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// The lines of a picture, without the empty space at their ends and at the end of the picture.
fn text_of(buffer: &Buffer) -> String {
    let lines = buffer.content().chunks(usize::from(buffer.area.width));
    let line =
        |cells: &[ratatui::buffer::Cell]| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
    let text = lines.map(|cells| format!("{}\n", line(cells).trim_end())).collect::<String>();
    format!("{}\n\n", text.trim_end())
}

/// Draws on the terminal until the user ends it.
fn watch(
    args: &Args,
    places: &Places,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Box<dyn Error>> {
    let mut model = Model::new(places.describe());
    let (mut next, mut left) = (Instant::now(), args.count);
    loop {
        let now = Instant::now();
        if now >= next {
            if left == Some(0) {
                return Ok(());
            }
            look(args, places, &mut model)?;
            left = left.map(|left| left - 1);
            next = now + args.interval;
        }
        terminal.draw(|frame| draw::draw(frame, &mut model))?;
        if !event::poll(next.saturating_duration_since(Instant::now()))? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind != KeyEventKind::Press {
            continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
            KeyCode::Up | KeyCode::Char('k') => model.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => model.choose(1),
            _ => {}
        }
    }
}
