"""What the Java peers share: libraries from Maven, classes, and how a JVM is started."""

from harness.process import BUILD, ROOT, run

PACKAGES = ["default-jdk-headless", "maven"]
SOURCES = ROOT / "bench" / "peers" / "java"
LIBRARIES = BUILD / "java" / "libraries"
CLASSES = BUILD / "java" / "classes"


def build() -> None:
    """Fetches the libraries once and compiles the programs."""
    if not LIBRARIES.is_dir():
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={LIBRARIES}"]
        run(["mvn", "--quiet", "--batch-mode", "--file", SOURCES / "pom.xml", *copy], timeout=900)
    CLASSES.mkdir(parents=True, exist_ok=True)
    run(["javac", "-cp", f"{LIBRARIES}/*", "-d", CLASSES, *sorted(SOURCES.glob("*.java"))], timeout=300)


def java(program: str, *arguments, options: tuple = ()) -> list:
    """The command that runs `program`."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("jdk.internal.misc", "sun.nio.ch")]
    return ["java", *opened, "-Xmx512m", *options, "-cp", f"{CLASSES}:{LIBRARIES}/*", program, *arguments]
