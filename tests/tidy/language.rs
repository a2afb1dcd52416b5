//! Words that plain technical English does not need: none in pages, ever fewer in the comments and literals of code.

use std::collections::BTreeMap;

use crate::pages;
use crate::source::{SourceFile, is_rust, numbered};

/// Words of the list, by the folder whose code uses them (`crates/fabric`, `fuzz`).
pub(crate) type Counts = BTreeMap<String, Vec<String>>;

/// The words of the list in a page, outside code.
pub(crate) fn in_page(page: &SourceFile) -> Vec<String> {
    faults(&page.path, &pages::prose(&page.text))
}

/// The words of the list in comments and literals of Rust files.
pub(crate) fn in_code(files: &[SourceFile]) -> Counts {
    let mut counts = Counts::new();
    for file in files.iter().filter(|file| is_rust(&file.path) && file.path != LIST) {
        let found = [file.comments(), file.literals()].map(|text| faults(&file.path, &text)).concat();
        counts.entry(folder(&file.path)).or_default().extend(found);
    }
    counts.retain(|_, found| !found.is_empty());
    counts
}

/// Compares the words in code with the numbers that are allowed, which may only shrink.
pub(crate) fn compare(found: &Counts, allowed: &BTreeMap<String, usize>) -> Vec<String> {
    let mut faults = Vec::new();
    for (folder, words) in found {
        let (count, limit) = (words.len(), allowed.get(folder).copied().unwrap_or(0));
        if count > limit {
            faults.push(format!(
                "{folder}: {count} words of the list, {limit} allowed; some of these are new:"
            ));
            faults.extend(words.iter().cloned());
        }
    }
    for (folder, limit) in allowed {
        let count = found.get(folder).map_or(0, Vec::len);
        if count < *limit {
            faults.push(format!("tests/tidy/words.txt: write `{folder} {count}`; it may only shrink"));
        }
    }
    faults
}

/// The folder that a file of code counts for.
fn folder(path: &str) -> String {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

/// A word of a text.
struct Word {
    /// In lower case.
    text: String,
    /// From 1.
    line: usize,
    /// Whether a sentence, or a part of one behind a colon or semicolon, begins here.
    begins: bool,
    /// Whether a comma is in front of it.
    follows_comma: bool,
    /// Whether a question mark ends its sentence.
    is_asked: bool,
}

/// The words of the list in `text`, each with its place and with what to write instead.
fn faults(path: &str, text: &str) -> Vec<String> {
    let words = words(text);
    let mut faults = Vec::new();
    for (at, first) in words.iter().enumerate() {
        let is_here = |phrase: &str| matches(phrase, &words[at..]);
        let entry = LIST_OF_WORDS.iter().find(|(phrases, _)| phrases.split('|').any(is_here));
        let entry = entry.filter(|_| !EXCEPTIONS.iter().any(|phrase| is_here(phrase)));
        if let Some((phrases, instead)) = entry {
            let phrase = phrases.split('|').find(|phrase| is_here(phrase)).unwrap_or_default();
            let phrase = phrase.trim_start_matches('^').trim_end_matches(" $");
            faults.push(format!("{path}:{}: `{phrase}`: write {instead}", first.line));
        }
    }
    faults
}

/// Whether `words` begin with `phrase`, but not with a `so` that joins two clauses. A leading `^` stands for the beginning of a sentence that is no question, a last
/// `$` for the end of a sentence or of a part of it.
fn matches(phrase: &str, words: &[Word]) -> bool {
    let begins = phrase.starts_with('^');
    let mut rest = words.iter();
    let phrase = phrase.trim_start_matches('^');
    let first = phrase.split(' ').next().unwrap_or_default();
    for part in phrase.split(' ') {
        match rest.next() {
            word if part == "$" => return word.is_none_or(|word| word.begins),
            Some(word) if word.text == part && !(word.begins && part != first) => {}
            _ => return false,
        }
    }
    let is_conjunction = first == "so" && words[0].follows_comma;
    !is_conjunction && (!begins || words[0].begins && !words[0].is_asked)
}

/// The words of `text`. A blank line, and a mark of a list, heading or table in front of a line, end a sentence. Code in
/// backticks is one word, a backtick; names in braces are left out.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut sentence = 0;
    let (mut begins, mut follows_comma, mut inside) = (true, false, None);
    for (line, content) in numbered(text) {
        let content = content.trim_start().trim_start_matches(['/', '!', '*']).trim_start();
        let is_item = content.starts_with(['-', '*', '#', '|', '>'])
            || content.starts_with(|c: char| c.is_ascii_digit());
        if content.is_empty() || is_item {
            (begins, inside) = (true, None);
        }
        let mut chars = content.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                _ if inside == Some(c) => inside = None,
                _ if inside.is_some() => {}
                '`' => {
                    words.push(Word {
                        text: "`".into(),
                        line,
                        begins,
                        follows_comma: false,
                        is_asked: false,
                    });
                    (begins, follows_comma, inside) = (false, false, Some('`'));
                }
                '{' => inside = Some('}'),
                '.' | '!' | '?' | ':' | ';' | '|' | '"' | '—' => {
                    if c == '?' {
                        words[sentence..].iter_mut().for_each(|word| word.is_asked = true);
                    }
                    if c != ':' && c != ';' {
                        sentence = words.len();
                    }
                    begins = true;
                }
                c if c.is_alphabetic() => {
                    let mut text = c.to_lowercase().to_string();
                    while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                        text.extend(c.to_lowercase());
                    }
                    words.push(Word { text, line, begins, follows_comma, is_asked: false });
                    follows_comma = false;
                    begins = false;
                }
                ',' => follows_comma = true,
                _ => {}
            }
        }
        // A name in braces ends in its line.
        inside = inside.filter(|end| *end == '`');
    }
    words
}

/// This file, which has them all.
const LIST: &str = "tests/tidy/language.rs";

const NAME_IT: &str = "who or what it is: `the member that …`, `a client that …`";
/// Phrases, and what to write instead.
const LIST_OF_WORDS: [(&str, &str); 33] = [
    ("^who|^whom|whoever|by who|but who|from who|to who|of who|all who|than who", NAME_IT),
    ("nobody", "`no member`, `no process`"),
    ("somebody", "`a member`, `another process`"),
    ("told|tells", "`reported`, `announces`, `sends`"),
    ("so many", "`that many`, or the number"),
    ("so long", "`as long as`, or the time"),
    ("it is so $", "what is"),
    ("go on|goes on|going on|gone on|went on", "`continue`"),
    ("be had", "`is available`, `allocation fails`"),
    ("whence", "`from where`"),
    ("lie|lies|lay", "`is stored`, `is`"),
    ("stand in|stands in", "`is in`"),
    ("stand still|stands still|stood still", "`stalls`, `makes no progress`"),
    ("come again|comes again|came again", "`rejoins`, `returns`"),
    ("hear of|hears of|heard of", "`learns of`"),
    ("see to it|sees to it", "`ensures`, `checks`"),
    ("there and back", "`a round trip`"),
    ("now and then", "`occasionally`"),
    ("for ever", "`forever`"),
    ("at longest", "`at most`"),
    ("newcomer|newcomers", "`joiner`"),
    ("desk|desks", "`admission`, `admission service`"),
    ("guest|guests", "`candidate`"),
    ("scout|scouts", "`discovery`"),
    ("porter|porters", "`pre-join responder`"),
    ("greeter|greeters", "`view notifier`"),
    ("giver|givers|gift|gifts", "`state provider`, `snapshot`"),
    ("seat|seats", "`subgroup slot`"),
    ("mistake|mistakes", "`mutation`"),
    ("office|offices", "`message bus`"),
    ("herd|lifeline|lifelines", "`process pool`, `parent watchdog`"),
    ("errand|errands", "`background task`"),
    ("room", "`free space`, `capacity`"),
];
/// Phrases that begin like one of the list and are good English.
const EXCEPTIONS: [&str; 5] = ["lay out", "stand in for", "stands in for", "so long that", "so many that"];

#[cfg(test)]
fn found(text: &str) -> Vec<String> {
    let page = SourceFile::new("a.md", text);
    let name = |fault: String| fault.split('`').nth(1).unwrap_or_default().to_owned();
    in_page(&page).into_iter().map(name).collect()
}

#[test]
fn words_of_the_list_are_found() {
    assert_eq!(
        in_page(&SourceFile::new("a.md", "One.\nIt goes\non.")),
        ["a.md:2: `goes on`: write `continue`"]
    );
    let headless = "Who asks waits. It knows; who asks waits.\n- Who asks\n\nWhom it asks";
    assert_eq!(found(headless), ["who", "who", "who", "whom"]);
    assert_eq!(
        found("It takes so many.\nIt tells nobody that it is so."),
        ["so many", "tells", "nobody", "it is so"]
    );
    assert_eq!(
        found("A newcomer's desk has no *room*, even by who has it."),
        ["newcomer", "desk", "room", "by who"]
    );
}

#[test]
fn plain_english_is_not_found() {
    let good = [
        "People who use it, and clients, who wait.",
        "Who holds it up? Whom does it ask?",
        "Hosts relay, so many copies are fast.",
        "It took so long that it failed; it is so short that it fits.",
        "It has the port of `a`. Who is it?",
        "Lay out the words. It can tell them apart. A layout, the deskbound.",
        "`nobody` is a name, as is `so\nmany`.\n```\nwho asks\nnobody\n```\n",
    ];
    for text in good {
        assert_eq!(found(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn code_is_searched_in_comments_and_literals() {
    let text = "//! Nobody.\nlet desk = \"nobody {somebody}\"; // whence\nlet whence = r#\"so many\"#;\n";
    let files = [SourceFile::new("crates/a/src/b.rs", text), SourceFile::new("fuzz/src/b.rs", "// told")];
    let counts = in_code(&files);
    let numbers = counts.iter().map(|(folder, found)| (folder.as_str(), found.len()));
    assert_eq!(numbers.collect::<Vec<_>>(), [("crates/a", 4), ("fuzz", 1)]);
    let allowed = |a, fuzz| BTreeMap::from([("crates/a".to_owned(), a), ("fuzz".to_owned(), fuzz)]);
    assert_eq!(compare(&counts, &allowed(4, 1)), Vec::<String>::new());
    assert_eq!(compare(&counts, &allowed(3, 1)).len(), 5, "the folder and its four faults");
    assert_eq!(compare(&counts, &allowed(4, 2)).len(), 1, "the number has to shrink");
}
