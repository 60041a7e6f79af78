//! Shortening a failing plan.

use super::{Options, Plan, run};

/// A plan that fails in the same way as this one, with everything removed that could be.
///
/// Removes actions first, in ever smaller pieces; then faults, links and repetitions. Calls `told` after each
/// success, with the number of remaining actions.
#[must_use]
pub fn shrink(plan: &Plan, mut told: impl FnMut(usize)) -> Plan {
    let mut best = plan.clone();
    let wanted = kind(plan);
    let mut try_plan = |best: &mut Plan, candidate: Plan| {
        let fails = kind(&candidate) == wanted;
        if fails {
            told(candidate.script.len());
            *best = candidate;
        }
        fails
    };
    let mut again = true;
    while again {
        again = false;
        let mut piece = best.script.len().div_ceil(2);
        while piece > 0 {
            let mut at = 0;
            while at < best.script.len() {
                let mut candidate = best.clone();
                let end = (at + piece).min(candidate.script.len());
                candidate.script.drain(at..end);
                if try_plan(&mut best, candidate) {
                    again = true;
                } else {
                    at += piece;
                }
            }
            piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
        }
        for index in 0..simpler(&best).len() {
            // Recomputed each time: what was removed stays removed.
            let candidate = simpler(&best).into_iter().nth(index);
            if let Some(candidate) = candidate.filter(|candidate| *candidate != best) {
                again |= try_plan(&mut best, candidate);
            }
        }
        for index in 0..best.script.len() {
            let mut candidate = best.clone();
            (candidate.script[index].times, candidate.script[index].after) = (1, 0);
            let _ = candidate != best && try_plan(&mut best, candidate);
        }
    }
    best
}

/// The kind of a plan's failure, without its numbers: a different failure is a different bug.
fn kind(plan: &Plan) -> Option<String> {
    let violation = run(plan, &Options::default()).violation?;
    let (_, what) = violation.split_once(": ").unwrap_or(("", &violation));
    Some(what.chars().filter(|c| c.is_alphabetic() || *c == ' ').take(80).collect())
}

/// Every plan with one element less in a device or a connection.
fn simpler(plan: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut candidate = plan.clone();
        change(&mut candidate);
        found.push(candidate);
    };
    for host in 0..plan.hosts.len() {
        for rule in 0..plan.hosts[host].faults.len() {
            add(&|plan| {
                plan.hosts[host].faults.remove(rule);
            });
        }
        add(&|plan| plan.hosts[host].link = String::new());
        add(&|plan| plan.hosts[host].cc = String::new());
        add(&|plan| plan.hosts[host].slow = false);
        add(&|plan| plan.hosts[host].foreign = false);
        add(&|plan| plan.hosts[host].selective = false);
        add(&|plan| plan.hosts[host].latency = 1000);
    }
    add(&|plan| plan.fabric = None);
    for conn in 0..plan.conns.len() {
        add(&|plan| plan.conns[conn].srq = [false; 2]);
        add(&|plan| plan.conns[conn].lazy = [false; 2]);
        add(&|plan| plan.conns[conn].sig_all = [false; 2]);
    }
    if let Some(last) = plan.conns.len().checked_sub(1).filter(|last| *last > 0) {
        add(&|plan| {
            plan.conns.pop();
            plan.script.retain(|action| action.conn < last);
        });
    }
    found
}
