//! Standard input and output, whoever is slow.

use super::*;

const MIB: usize = 1 << 20;

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(|_| next()).take(length).collect()
}

#[test]
fn sixty_four_mebibytes_come_back_identical() {
    let input = noise(64 * MIB);
    let outcome = Host::exec(Exec { stdin: true, ..command(&["cat"]) }).finish_with(&input);
    assert_eq!(outcome.exit, exited(0));
    assert!(outcome.stdout == input, "{} bytes came back", outcome.stdout.len());
}

#[test]
fn a_slow_reader_holds_the_program_back_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("written");
    let script =
        format!("dd if=/dev/zero bs=1048576 count=16 2>/dev/null; touch {}", mark.display());
    let mut host = Host::exec(shell(&script));
    // Nobody reads, and 16 MiB are nowhere to be put: however long this takes, the program is not through after it.
    (0..20).for_each(|_| assert_eq!(run(command(&["true"])).exit, exited(0)));
    assert!(!mark.exists());
    let mut received = 0;
    while received < 16 * MIB {
        match host.next() {
            Some(Message::Stdout(bytes)) => received += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, 16 * MIB);
    assert_eq!(host.finish().exit, exited(0));
    assert!(mark.exists());
}

#[test]
fn everything_written_before_the_exit_arrives_before_the_exit_frame() {
    for _ in 0..20 {
        let outcome = run(shell("dd if=/dev/zero bs=65536 count=1 2>/dev/null; echo end >&2"));
        assert_eq!((outcome.stdout.len(), outcome.stderr.as_slice()), (65536, &b"end\n"[..]));
    }
}

#[test]
fn without_input_standard_input_is_at_its_end() {
    assert_eq!(run(command(&["cat"])).exit, exited(0));
}

#[test]
fn a_program_that_closes_its_input_does_not_block_the_client() {
    let request = Exec { stdin: true, ..shell("exec 0<&-; echo closed; sleep 0.2") };
    let outcome = Host::exec(request).finish_with(&vec![b'x'; 2 * MIB]);
    assert_eq!((outcome.text(), outcome.exit), ("closed", exited(0)));
}

#[test]
fn a_signal_passes_input_that_nobody_reads() {
    let mut host = Host::exec(Exec { stdin: true, ..command(&["sleep", "1000"]) });
    let window = usize::try_from(STDIN_WINDOW_BYTES).unwrap();
    host.send(&Message::Stdin(vec![b'x'; window]));
    host.send(&Message::Signal(15));
    assert_eq!(host.finish().exit, killed(15));
}

#[test]
fn a_client_that_ignores_the_window_is_cut_off() {
    let mut host = Host::exec(Exec { stdin: true, ..command(&["sleep", "1000"]) });
    let window = usize::try_from(STDIN_WINDOW_BYTES).unwrap();
    host.send(&Message::Stdin(vec![b'x'; window]));
    // More than the pipe could have taken meanwhile.
    host.send(&Message::Stdin(vec![b'x'; window]));
    while let Some(message) = host.next() {
        assert!(matches!(message, Message::StdinCredit(_)), "{message:?}");
    }
}
