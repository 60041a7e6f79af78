//! Prints counters at the end of a run.
use rnic_fabric::scenario::Scenario;
use std::path::Path;
fn main() {
    let text = std::fs::read_to_string(std::env::args().nth(1).expect("a file")).expect("the file");
    let (_, scenario) = Scenario::read_all(&text).expect("it reads").remove(0);
    let mut run = scenario.prepare(Path::new("."), 1).expect("it fits");
    run.run(scenario.until, &mut |_| true).expect("it runs");
    for host in 0..3 {
        let device = run.device(host).expect("a host").clone();
        println!("host {host}");
        for (name, value) in device.counters().iter().filter(|(_, value)| *value > 0) {
            println!("  {name} {value}");
        }
    }
    let tally = run.fabric().lock().tally();
    println!("{tally:?} {:?}", run.flows()[0]);
}
