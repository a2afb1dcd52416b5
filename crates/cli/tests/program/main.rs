//! The program as its users call it.

mod command_line;
mod dds;
mod hanging;
mod log;
mod members;
mod messages;
mod node;
mod recover;
mod shortage;
mod signals;
mod status;
mod top;
mod trouble;
#[path = "../../../../tests/trouble_page.rs"]
mod trouble_page;
