#include "root.h"

#include "system.h"
#include "text.h"

static void load_modules(const char *const *modules)
{
    for (; *modules; modules++) {
        long file = CALL(SYS_open, *modules, O_RDONLY, 0);
        long result = file < 0 ? file : CALL(SYS_finit_module, file, "", 0);
        if (result < 0 && result != -EEXIST)
            SAY("the module ", *modules, " can't be loaded: error ", digits(-result));
        if (file >= 0)
            CALL(SYS_close, file, 0, 0);
    }
}

static bool mount_folder(const char *tag, const char *place, long flags)
{
    long result = 0;
    for (int try = 0; try < TRIES; try++) {
        result = mount(tag, place, "virtiofs", flags, NULL);
        /* The device may be found in a moment. */
        if (result != -EINVAL)
            break;
        wait_a_little();
    }
    if (result == -ENODEV)
        SAY("this kernel can't mount a shared folder: it needs CONFIG_FUSE_FS and CONFIG_VIRTIO_FS, built in or as modules that "
            "kvmprof finds (--modules DIR)");
    else if (result == -EINVAL)
        SAY("this kernel doesn't find the shared folder's device: it needs CONFIG_VIRTIO_MMIO, built in or as a module that "
            "kvmprof finds (--modules DIR)");
    else if (result < 0)
        SAY("the shared folder can't be mounted: error ", digits(-result));
    return result >= 0;
}

/* The folder below, and above it what the guest changes, in memory. */
static bool mount_overlay(const char *tag)
{
    if (!mount_folder(tag, "/lower", MS_RDONLY))
        return false;
    long result = mount("none", "/upper", "tmpfs", 0, "mode=755");
    CALL(SYS_mkdir, "/upper/files", 0755, 0);
    CALL(SYS_mkdir, "/upper/work", 0755, 0);
    if (result >= 0)
        result = mount("none", "/root", "overlay", 0, "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work");
    if (result == -ENODEV)
        SAY("this kernel has no overlay file system: it needs CONFIG_OVERLAY_FS and CONFIG_TMPFS, or the root to be writable "
            "(--root DIR,rw)");
    else if (result < 0)
        SAY("there is no overlay over the shared folder: error ", digits(-result));
    return result >= 0;
}

/* Mounts in the new root. Where there is no folder to mount on, there is one afterwards only if that doesn't go to the host. */
static void mount_in_root(const char *place, const char *type, long flags, const char *options, bool writable)
{
    if (!writable)
        CALL(SYS_mkdir, place, 0755, 0);
    long result = mount("none", place, type, flags, options);
    if (result < 0 && result != -ENOENT)
        SAY(place, " can't be mounted: error ", digits(-result));
}

void start_drivers(const struct settings *settings)
{
    mount("none", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    load_modules(settings->modules);
}

bool change_root(const struct settings *settings)
{
    bool writable = settings->writable;
    if (!(writable ? mount_folder(settings->tag, "/root", 0) : mount_overlay(settings->tag)))
        return false;
    CALL(SYS_chdir, "/root", 0, 0);
    if (!writable)
        CALL(SYS_mkdir, "dev", 0755, 0);
    mount("/dev", "dev", NULL, MS_MOVE, NULL);
    long result = mount(".", "/", NULL, MS_MOVE, NULL);
    if (result < 0 || CALL(SYS_chroot, ".", 0, 0) < 0 || CALL(SYS_chdir, "/", 0, 0) < 0) {
        SAY("the shared folder can't become the root");
        return false;
    }
    long plain = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    mount_in_root("/proc", "proc", plain, NULL, writable);
    mount_in_root("/sys", "sysfs", plain, NULL, writable);
    mount_in_root("/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", writable);
    mount_in_root("/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755", writable);
    /* These two are in a file system of the guest's own. */
    mount_in_root("/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=620,ptmxmode=666", false);
    mount_in_root("/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", false);
    return true;
}
