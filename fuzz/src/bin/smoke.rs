//! Feeds every parser with seeds that are changed at random, for some seconds each: `smoke SECONDS`. It is no
//! substitute for coverage guidance, but it runs wherever the project builds. `smoke seeds FOLDER` writes the seeds down
//! for cargo-fuzz instead.

use std::path::Path;
use std::time::{Duration, Instant};

use squall_fuzz::{PARSERS, Parser};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["seeds", folder] => write_seeds(folder.as_ref()).expect("the folder can be written to"),
        [seconds] => smoke(Duration::from_secs(seconds.parse().expect("a number of seconds"))),
        _ => panic!("use: smoke SECONDS, or smoke seeds FOLDER"),
    }
}

fn smoke(time: Duration) {
    for parser in PARSERS {
        println!("{}: {} inputs, no panic", parser.name, run(parser, time));
    }
}

/// Writes the seeds of each parser to a folder of its own.
fn write_seeds(folder: &Path) -> std::io::Result<()> {
    for parser in PARSERS {
        let folder = folder.join(parser.name);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in (parser.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed{i}")), seed)?;
        }
    }
    Ok(())
}

/// Feeds `parser` for `time`; returns the number of inputs. A panic prints the input that caused it.
fn run(parser: &Parser, time: Duration) -> u64 {
    let seeds = (parser.seeds)();
    assert!(!seeds.is_empty(), "a parser needs a seed");
    for seed in &seeds {
        (parser.feed)(seed);
    }
    let mut random = Random(0x5eed);
    let (begun, mut inputs) = (Instant::now(), 0);
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            let mut input = seeds[random.below(seeds.len())].clone();
            random.change(&mut input);
            let reporter = Reporter { name: parser.name, input: &input };
            (parser.feed)(&input);
            std::mem::forget(reporter);
        }
        inputs += BATCH;
    }
    inputs
}

/// Prints the input if the parser panics over it.
struct Reporter<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for Reporter<'_> {
    fn drop(&mut self) {
        eprintln!("{} fails on {:02x?}", self.name, self.input);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("below a usize")
    }

    /// Makes some changes of the kinds that break parsers: other bits, extreme numbers, cuts, repetitions.
    fn change(&mut self, input: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(input.len());
            match self.below(6) {
                0 if !input.is_empty() => input[at] ^= 1 << self.below(8),
                1 if !input.is_empty() => input[at] = EXTREMES[self.below(EXTREMES.len())],
                2 => input.truncate(at),
                3 => input.insert(at, self.next().to_le_bytes()[0]),
                4 => input.extend_from_within(at..),
                _ => self.overwrite(input, at),
            }
            input.truncate(INPUT_BYTES_MAX);
        }
    }

    /// Writes an extreme number of 1, 2, 4 or 8 bytes over what is at `at`.
    fn overwrite(&mut self, input: &mut [u8], at: usize) {
        let width = (1 << self.below(4)).min(input.len() - at.min(input.len()));
        let number = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 31, u64::from(u32::MAX)][self.below(6)];
        input[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
    }
}

/// Inputs between two looks at the clock.
const BATCH: u64 = 1000;
/// Longer inputs only cost time.
const INPUT_BYTES_MAX: usize = 4096;
const EXTREMES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
