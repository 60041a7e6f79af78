//! `rnic doctor`: checks whether RoCEv2 works on this host.

use clap::Parser;
use rnic::doctor::{Finding, Severity, examine};
use std::io::{self, Write};
use std::process::ExitCode;

/// Check this host for problems with RoCEv2 and suggest remedies.
///
/// Changes nothing and needs no privileges, but root sees more.
#[derive(Parser, Debug)]
#[command(after_help = "Exit code: 0 if rnic works on this host, 1 if a problem must be solved first.")]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let findings = examine();
    match write_report(&mut io::stdout().lock(), &findings, args.json) {
        // A reader that closed the pipe has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("cannot print: {error}")),
        _ => Ok(exit_code(&findings)),
    }
}

fn exit_code(findings: &[Finding]) -> ExitCode {
    let failed = findings.iter().any(|finding| finding.severity == Severity::Problem);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn write_report(out: &mut impl Write, findings: &[Finding], json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, findings)?;
        return writeln!(out);
    }
    for finding in findings {
        let prefix = match finding.severity {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warn",
            Severity::Problem => "FAIL",
        };
        writeln!(out, "{prefix:<5} {}", finding.what)?;
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "      -> {remedy}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, what: &str, remedy: Option<&str>) -> Finding {
        Finding { severity, what: what.into(), remedy: remedy.map(Into::into) }
    }

    #[test]
    fn each_finding_is_a_line_and_its_remedy_another() {
        let findings =
            [finding(Severity::Ok, "fine", None), finding(Severity::Problem, "broken", Some("repair it"))];
        let mut out = Vec::new();
        write_report(&mut out, &findings, false).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "ok    fine\nFAIL  broken\n      -> repair it\n");
    }

    #[test]
    fn json_has_the_same() {
        let mut out = Vec::new();
        write_report(&mut out, &[finding(Severity::Warning, "slow", None)], true).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value, serde_json::json!([{"severity": "warning", "what": "slow", "remedy": null}]));
    }

    #[test]
    fn only_problems_fail() {
        let code = |severity| format!("{:?}", exit_code(&[finding(severity, "", None)]));
        assert_eq!(code(Severity::Warning), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(Severity::Problem), format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn this_host_can_be_examined() {
        let args = Args::try_parse_from(["doctor", "--json"]).unwrap();
        assert!(args.json);
        run(&args).unwrap();
    }
}
