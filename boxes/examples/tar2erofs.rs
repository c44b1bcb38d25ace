//! Turns a tar archive (or stdin, as `-`) into an EROFS image: `tar2erofs IN.tar OUT.erofs`.
//!
//! The image is written beside its final place and renamed, so a broken run leaves nothing under the final name.
//! Prints a summary on stderr.
#![expect(clippy::print_stderr, reason = "a command: stderr is where its messages belong")]

use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;

use boxes::image::erofs::{BuildOptions, Summary, build_from_tar};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [input, output] = &arguments[..] else {
        eprintln!("usage: tar2erofs IN.tar|- OUT.erofs");
        return ExitCode::from(2);
    };
    match convert(Path::new(input), Path::new(output)) {
        Ok(summary) => {
            let mib = summary.image_bytes.div_ceil(1 << 20);
            eprintln!(
                "tar2erofs: {} entries, {} files, {mib} MiB",
                summary.entries, summary.inodes
            );
            if summary.ignored_xattrs > 0 {
                eprintln!("tar2erofs: left out {} extended attributes", summary.ignored_xattrs);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("tar2erofs: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn convert(input: &Path, output: &Path) -> Result<Summary, Box<dyn Error>> {
    let mut reader: Box<dyn Read> = match input.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(input)?)),
    };
    let mut partial = output.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let built = build(&mut reader, partial);
    if built.is_err() {
        // Best effort: the error that matters is the one that is returned.
        let _ = fs::remove_file(partial);
    }
    let summary = built?;
    fs::rename(partial, output)?;
    Ok(summary)
}

fn build(reader: &mut dyn Read, partial: &Path) -> Result<Summary, Box<dyn Error>> {
    let file = File::create(partial)?;
    let summary = build_from_tar(&mut *reader, &file, &BuildOptions::default())?;
    // Whoever writes a pipe must not be cut off while it pads the archive's end.
    io::copy(reader, &mut io::sink())?;
    file.sync_all()?;
    Ok(summary)
}
