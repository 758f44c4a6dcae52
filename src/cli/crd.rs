//! `sandboxrun crd`: the custom resource definitions, from the types that this program reads.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::files::write_if_changed;
use crate::api::crd;

/// Print the custom resource definitions, to be applied to a cluster.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sandboxrun crd | kubectl apply --server-side -f -
  sandboxrun crd --dir crds")]
pub(super) struct CrdArgs {
    /// Write one file for each definition into this directory instead.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes the definitions.
pub(super) fn run(args: &CrdArgs, out: &mut dyn Write) -> io::Result<()> {
    for (at, crd) in crd::all().iter().enumerate() {
        match &args.dir {
            Some(dir) => {
                write_if_changed(&dir.join(crd.file_name()), &crd.yaml())?;
            }
            None if at == 0 => out.write_all(crd.yaml().as_bytes())?,
            None => write!(out, "---\n{}", crd.yaml())?,
        }
    }
    Ok(())
}
