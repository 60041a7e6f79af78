//! uDAPL (2.1): its test programs, over its providers for the connection manager and for TCP sockets.

use crate::lab::has;
use crate::rdma_cm::{Case, run_all};

/// The script that writes the list of providers, and runs a program.
macro_rules! dapl {
    ($at:literal, $line:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sh/dapl FOLDER ", $at, " ", $line)
    };
}

/// Programs that both end.
macro_rules! both {
    ($server:literal, $client:literal, $prints:literal) => {
        Case::of(dapl!("@", $server), dapl!("&", $client)).prints($prints)
    };
}

#[test]
fn udapl_programs_run() {
    if !has("dtest") {
        return;
    }
    run_all(
        "uDAPL",
        &[
            both!("dtest -P rnic -b 65536", "dtest -P rnic -b 65536 -h @", "DAPL Test Complete. PASSED"),
            both!("dtest -P sockets -b 4096", "dtest -P sockets -b 4096 -h @", "DAPL Test Complete. PASSED"),
            // Waits for events, and compares what was written.
            both!("dtest -P rnic -b 4096 -c -W -D", "dtest -P rnic -b 4096 -c -W -D -h @", "PASSED"),
            both!("dtestx -P rnic", "dtestx -P rnic -h @", "immed/atomic test PASSED"),
            both!("dtestsrq -P rnic -c 8 -B 10", "dtestsrq -P rnic -c 8 -B 10 -h @", "SRQ Test Complete"),
            // The server waits 10 ms for the end of each connection.
            both!("dtestcm -P rnic -c 100", "dtestcm -P rnic -c 100 -h @", "Num=100"),
            Case::of(
                dapl!("@", "dapltest -T S -D rnic"),
                dapl!("&", "dapltest -T T -s @ -D rnic -i 50 -t 2 -w 2 -R BE client RW 65536 server RR 65536 client SR 8192 4 server SR 8192 4"),
            )
            .forever()
            .prints("End of Work"),
            Case::of(dapl!("@", "dapltest -T S -D rnic"), dapl!("&", "dapltest -T P -s @ -D rnic -i 500 -p 16 RR 4096"))
                .forever()
                .prints("raw: RR"),
        ],
    );
}
