//! What the programs share: command lines with their options and exit statuses, signals that end work in order, child processes, tables, text
//! that is safe to print, and requests by HTTP.

pub mod child;
pub mod command_line;
pub mod http;
pub mod interrupt;
pub mod table;
pub mod text;
mod text_writer;
