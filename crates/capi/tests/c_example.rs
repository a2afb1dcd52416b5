//! Compiles the C example against the header and the library, with warnings as errors, and runs it.

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
    let compiled = Command::new("cc")
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("include"))
        .arg(root.join("examples/echo.c"))
        .arg("-L")
        .arg(&folder)
        .args(["-lsquall_exs", "-o"])
        .arg(&program)
        .status()
        .expect("a C compiler: apt install gcc");
    assert!(compiled.success());
    let run = Command::new(&program).env("LD_LIBRARY_PATH", &folder).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("1000000 bytes echoed"), "{text}");
}
