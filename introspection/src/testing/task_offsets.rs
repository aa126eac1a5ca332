//! Offsets in a task's structures, in bytes from the start of each.

/// `task_struct.pid`, the thread's id.
pub const PID: u64 = 0x40;
/// `task_struct.tgid`, the process's id.
pub const TGID: u64 = 0x44;
/// `task_struct.signal`, a pointer.
pub const SIGNAL: u64 = 0x48;
/// `task_struct.comm`, 16 bytes.
pub const COMM: u64 = 0x50;
/// `task_struct.group_leader`, a pointer.
pub const LEADER: u64 = 0x70;
/// `task_struct.mm`, a pointer.
pub const MM: u64 = 0x60;
/// `task_struct.start_time`, 8 bytes.
pub const START_TIME: u64 = 0x78;
/// `task_struct.self_exec_id`, 4 bytes.
pub const EXEC_ID: u64 = 0x80;
/// `task_struct.exit_state`, 4 bytes.
pub const EXIT_STATE: u64 = 0x88;
/// `task_struct.real_parent`, a pointer.
pub const PARENT: u64 = 0x90;
/// `task_struct.tasks`, the processes' list.
pub const TASKS: u64 = 0x98;
/// `task_struct.__state`, 4 bytes, and `on_cpu`; then `nvcsw` and `nivcsw`, 8 bytes each.
pub const STATE: u64 = 0xa8;
/// See [`STATE`].
pub const ON_CPU: u64 = 0xac;
/// See [`STATE`].
pub const SWITCHES: u64 = 0xb0;
/// `task_struct.sched_info.run_delay`, 8 bytes.
pub const RUN_DELAY: u64 = 0xc8;
/// `task_struct.thread.sp`, 8 bytes.
pub const STACK: u64 = 0xd8;
/// `task_struct.thread_node`.
pub const THREAD_NODE: u64 = 0xe0;
/// `task_struct.thread_pid`, a pointer.
pub const OWN_PID: u64 = 0xf0;
/// `task_struct.fs`, a pointer.
pub const FILESYSTEM: u64 = 0xf8;
/// `task_struct.cred`, a pointer, and `cred.uid`, 4 bytes.
pub const CREDENTIALS: u64 = 0x100;
/// See [`CREDENTIALS`].
pub const USER: u64 = 8;
/// `task_struct.thread_info.cpu`, 4 bytes.
pub const CPU: u64 = 0x10;
/// `signal_struct.thread_head`.
pub const THREAD_HEAD: u64 = 0x10;
/// `signal_struct.live`, 4 bytes.
pub const LIVE: u64 = 8;
/// `signal_struct.flags`, 4 bytes.
pub const SIGNAL_FLAGS: u64 = 0x38;
/// The 4 bytes with `signal_struct.is_child_subreaper`.
pub const REAPERS: u64 = 0x3c;
/// `signal_struct.pids[PIDTYPE_PGID]`, a pointer.
pub const GROUP: u64 = 0x20 + 16;
/// `pid.level`, 4 bytes.
pub const LEVEL: u64 = 4;
/// Bytes of one of `pid.numbers`.
pub const NUMBER_LENGTH: u64 = 16;
/// `fs_struct.root.mnt`, a pointer; `root.dentry` follows it.
pub const ROOT: u64 = 0x18;
/// `pid.numbers[0].nr`.
pub const NUMBER: u64 = 0x18 + 4;
