//! Messages between processes: one JSON object in each line.

use std::io::{BufRead, Write};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes one line.
///
/// # Errors
/// If the other end has gone.
pub fn write_line(pipe: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message).context("a message cannot be written as JSON")?;
    line.push(b'\n');
    pipe.write_all(&line)?;
    Ok(pipe.flush()?)
}

/// Reads one line; `None` if the other end has closed.
///
/// # Errors
/// If the line is not a `T` in JSON.
pub(crate) fn read_line<T: DeserializeOwned>(pipe: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if pipe.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    match serde_json::from_str(&line) {
        Ok(message) => Ok(Some(message)),
        Err(error) => bail!("an unexpected line `{}`: {error}", line.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{MemberEvent, ParentCommand};

    #[test]
    fn what_is_written_is_read() {
        let mut pipe = Vec::new();
        write_line(&mut pipe, &ParentCommand::Go).unwrap();
        write_line(&mut pipe, &MemberEvent::Joined { joined: 2 }).unwrap();
        let mut pipe = &pipe[..];
        assert_eq!(read_line::<ParentCommand>(&mut pipe).unwrap(), Some(ParentCommand::Go));
        assert!(matches!(
            read_line::<MemberEvent>(&mut pipe).unwrap(),
            Some(MemberEvent::Joined { joined: 2 })
        ));
        assert!(read_line::<MemberEvent>(&mut pipe).unwrap().is_none());
        assert!(read_line::<MemberEvent>(&mut &b"panic\n"[..]).unwrap_err().to_string().contains("`panic`"));
    }
}
