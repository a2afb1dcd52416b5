//! Installs the library by packaging/c/install, and builds the example with what pkg-config says of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn shell(command: &str, folder: &Path) -> Output {
    Command::new("sh").args(["-euc", command]).current_dir(folder).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_program_is_built_with_the_installed_library() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built = if built.join("libsquall_exs.so").exists() { built } else { built.join("..") };
    let prefix = std::env::temp_dir().join(format!("squall-exs-{}", std::process::id()));
    let at = prefix.display();
    let install = format!("packaging/c/install --prefix {at} --built {}", built.display());
    let installed = shell(&install, &root);
    assert!(installed.status.success(), "{}", text(&installed));
    for file in ["include/squall_exs.h", "lib/libsquall_exs.so", "lib/pkgconfig/squall_exs.pc"] {
        assert!(prefix.join(file).exists(), "{file} is missing");
    }
    if shell("command -v pkg-config", &root).status.success() {
        let flags = "$(PKG_CONFIG_PATH={at}/lib/pkgconfig pkg-config --cflags --libs squall_exs)";
        let build = format!(
            "cc -Wall -Werror crates/capi/examples/echo.c {flags} -Wl,-rpath,{{at}}/lib -o {{at}}/echo && {{at}}/echo"
        );
        let run = shell(&build.replace("{at}", &at.to_string()), &root);
        assert!(run.status.success() && text(&run).contains("1000000 bytes echoed"), "{}", text(&run));
    } else {
        println!("NO PKG-CONFIG: only what is installed was checked (apt install pkg-config)");
    }
    std::fs::remove_dir_all(&prefix).unwrap();
}
