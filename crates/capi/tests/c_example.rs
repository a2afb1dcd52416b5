//! Compiles the C example by the command in its header, with warnings as errors, and runs it.

use std::path::PathBuf;
use std::process::Command;

#[test]
fn the_example_compiles_and_runs() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // This test's program is in the folder `deps` next to the library's file.
    let built = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let folder = if built.join("libsquall_exs.so").exists() { built } else { built.join("..") };
    assert!(folder.join("libsquall_exs.so").exists(), "no libsquall_exs.so in {}", folder.display());
    let program = std::env::temp_dir().join(format!("squall-exs-echo-{}", std::process::id()));
    let source = std::fs::read_to_string(root.join("examples/echo.c")).unwrap();
    let lines = source.lines().map(|line| line.trim_start_matches([' ', '*']));
    let written = lines.clone().find(|line| line.starts_with("cc ")).expect("the header has the command");
    let command = written
        .replace("$PWD/target/release", &folder.display().to_string())
        .replace("target/release", &folder.display().to_string())
        .replace("-o echo", &format!("-o {}", program.display()))
        .replace("cc ", "cc -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror ");
    let compiled =
        Command::new("sh").args(["-c", &command]).current_dir(root.join("../..")).status().unwrap();
    assert!(compiled.success(), "is there a C compiler (apt install gcc)? {command}");
    let run = Command::new(&program).env_remove("LD_LIBRARY_PATH").output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("1000000 bytes echoed"), "{text}");
}
