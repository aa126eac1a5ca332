//! What the files of the guest's kernel tell, before its memory is looked through.

use kvmprof_introspection::{BuildFiles, GuestKnowledge, IntrospectionError};

use super::AttachedError;
use super::kernel_finder::KernelFinder;
use crate::vm::{ReadFile, ReadFiles, VmError};

/// The kernel's image, and the other files of its build. What `--kernel` names may be either.
pub fn sorted(
    kernel: Option<ReadFile>,
    files: ReadFiles,
) -> Result<(Option<ReadFile>, BuildFiles), AttachedError> {
    let mut files = files.parse().map_err(AttachedError::Files)?;
    let Some(file) = kernel else {
        return Ok((None, files));
    };
    let was_added = files.add(&file.name(), &file.bytes);
    let was_added = was_added.map_err(AttachedError::Files)?;
    Ok(((!was_added).then_some(file), files))
}

/// Compares the guest's kernel with the files: an error is better reported now than at the first tick.
pub fn look_once(
    finder: &mut KernelFinder,
    kernel: Option<ReadFile>,
    knowledge: &GuestKnowledge,
) -> Result<(), AttachedError> {
    match finder.look(knowledge) {
        Ok(()) => {}
        Err(source @ IntrospectionError::OtherBuild { .. }) => {
            let path = kernel.map(|kernel| kernel.path).unwrap_or_default();
            return Err(AttachedError::Kernel { path, source });
        }
        Err(source) if source.is_of_other_kernel() => return Err(AttachedError::Files(source)),
        Err(error) => log::warn!("Samples have no processes for now: {error}"),
    }
    Ok(())
}

/// What is known of the guest before its memory is looked through.
pub fn known(
    said: Option<GuestKnowledge>,
    kernel: Option<&ReadFile>,
    files: &BuildFiles,
) -> Result<GuestKnowledge, AttachedError> {
    if let Some(knowledge) = said {
        let image = kernel.map_or(&[][..], |kernel| &kernel.bytes);
        return Ok(knowledge.with_image(image).map_err(VmError::from)?);
    }
    let Some(ReadFile { path, bytes }) = kernel else {
        return Ok(GuestKnowledge::pending());
    };
    GuestKnowledge::from_running_image(bytes, files).map_err(|source| AttachedError::Kernel {
        path: path.clone(),
        source,
    })
}
