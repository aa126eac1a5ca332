//! The processes of the guests with their functions, and their stacks in the kernel.

use kvmprof_recording::Mode;

/// A program, and its functions in user mode.
pub struct Program {
    pub process: &'static str,
    pub thread: &'static str,
    pub module: &'static str,
    /// The functions that call one of the leaves, innermost first.
    pub base: &'static [&'static str],
    /// The functions of which one has the program counter.
    pub leaves: [&'static str; 8],
}

/// What the kernel does for a program.
pub struct Path {
    pub mode: Mode,
    /// Functions with their modules, innermost first. The kernel's own have an empty module.
    pub functions: &'static [(&'static str, &'static str)],
    /// How much of a guest's time it takes, relative to the weights of the others.
    pub weight: u64,
}

/// The roles of guests by name, with three programs each.
pub const ROLES: [(&str, [Program; 3]); 4] = [
    (
        "db",
        [
            Program {
                process: "postgres",
                thread: "postgres",
                module: "postgres",
                base: &[
                    "ExecutePlan",
                    "standard_ExecutorRun",
                    "PortalRun",
                    "exec_simple_query",
                    "PostgresMain",
                    "BackendRun",
                    "main",
                ],
                leaves: [
                    "ExecScan",
                    "heap_getnextslot",
                    "hash_search_with_hash_value",
                    "slot_deform_heap_tuple",
                    "ExecInterpExpr",
                    "LWLockAcquire",
                    "btgettuple",
                    "AllocSetAlloc",
                ],
            },
            Program {
                process: "postgres",
                thread: "walwriter",
                module: "postgres",
                base: &["BackgroundWriterMain", "AuxiliaryProcessMain", "main"],
                leaves: [
                    "XLogInsertRecord",
                    "XLogFlush",
                    "pg_comp_crc32c_sse42",
                    "CopyXLogRecordToWAL",
                    "BufferSync",
                    "SyncOneBuffer",
                    "PinBuffer",
                    "smgrwrite",
                ],
            },
            Program {
                process: "pgbouncer",
                thread: "pgbouncer",
                module: "pgbouncer",
                base: &["event_base_loop", "main_loop_once", "main"],
                leaves: [
                    "sbuf_recv",
                    "server_proto",
                    "client_proto",
                    "pktbuf_send",
                    "slab_alloc",
                    "varcache_apply",
                    "statlist_pop",
                    "hash_lookup3",
                ],
            },
        ],
    ),
    (
        "web",
        [
            Program {
                process: "nginx",
                thread: "nginx",
                module: "nginx",
                base: &[
                    "ngx_epoll_process_events",
                    "ngx_worker_process_cycle",
                    "main",
                ],
                leaves: [
                    "ngx_http_parse_request_line",
                    "ngx_http_process_request_headers",
                    "ngx_http_upstream_process_header",
                    "ngx_palloc",
                    "ngx_writev_chain",
                    "ngx_http_gzip_body_filter",
                    "ngx_event_recv",
                    "ngx_hash_find",
                ],
            },
            Program {
                process: "node",
                thread: "node",
                module: "node",
                base: &["node::SpinEventLoop", "uv_run", "node::Start", "main"],
                leaves: [
                    "v8::internal::Scavenger::ScavengeObject",
                    "v8::internal::JsonParser<unsigned char>::ParseJsonValue",
                    "Builtins_InterpreterEntryTrampoline",
                    "v8::internal::String::SlowFlatten",
                    "uv__read",
                    "llhttp__internal_execute",
                    "Builtins_KeyedLoadIC",
                    "v8::internal::Heap::AllocateRaw",
                ],
            },
            Program {
                process: "node",
                thread: "V8 Worker",
                module: "node",
                base: &[
                    "v8::platform::DefaultWorkerThreadsTaskRunner::WorkerThread::Run",
                    "start_thread",
                ],
                leaves: [
                    "v8::internal::ConcurrentMarking::RunMajor",
                    "v8::internal::Sweeper::RawSweep",
                    "v8::internal::compiler::LiveRangeBuilder",
                    "v8::internal::compiler::GraphReducer::Reduce",
                    "v8::internal::MarkingVisitor::Visit",
                    "v8::base::Mutex::Lock",
                    "v8::internal::turboshaft::Assembler::Emit",
                    "v8::internal::Zone::Allocate",
                ],
            },
        ],
    ),
    (
        "cache",
        [
            Program {
                process: "redis-server",
                thread: "redis-server",
                module: "redis-server",
                base: &[
                    "processCommand",
                    "readQueryFromClient",
                    "aeProcessEvents",
                    "aeMain",
                    "main",
                ],
                leaves: [
                    "dictFind",
                    "siphash",
                    "sdscatlen",
                    "lookupKey",
                    "addReplyBulk",
                    "zslInsert",
                    "rehashIfNeeded",
                    "je_malloc",
                ],
            },
            Program {
                process: "redis-server",
                thread: "bio_lazy_free",
                module: "redis-server",
                base: &["bioProcessBackgroundJobs", "start_thread"],
                leaves: [
                    "decrRefCount",
                    "dictRelease",
                    "zslFree",
                    "je_free",
                    "arena_dalloc",
                    "quicklistRelease",
                    "raxFree",
                    "streamFree",
                ],
            },
            Program {
                process: "memcached",
                thread: "mc-worker",
                module: "memcached",
                base: &[
                    "drive_machine",
                    "event_handler",
                    "event_base_loop",
                    "worker_libevent",
                    "start_thread",
                ],
                leaves: [
                    "assoc_find",
                    "do_item_get",
                    "item_lock",
                    "MurmurHash3_x86_32",
                    "process_get_command",
                    "slabs_alloc",
                    "lru_bump",
                    "conn_read",
                ],
            },
        ],
    ),
    (
        "build",
        [
            Program {
                process: "cc1plus",
                thread: "cc1plus",
                module: "cc1plus",
                base: &[
                    "execute_pass_list",
                    "cgraph_node::expand",
                    "symbol_table::compile",
                    "do_compile",
                    "toplev::main",
                    "main",
                ],
                leaves: [
                    "ggc_internal_alloc",
                    "bitmap_set_bit",
                    "lra_constraints",
                    "df_worklist_dataflow",
                    "cselib_lookup",
                    "walk_tree_1",
                    "iterative_hash",
                    "ira_build",
                ],
            },
            Program {
                process: "ld.lld",
                thread: "ld.lld",
                module: "ld.lld",
                base: &[
                    "lld::elf::link",
                    "lld::elf::LinkerDriver::linkerMain",
                    "main",
                ],
                leaves: [
                    "llvm::xxh3_64bits",
                    "lld::elf::scanRelocations",
                    "lld::elf::InputSectionBase::relocate",
                    "lld::elf::SymbolTable::insert",
                    "llvm::StringTableBuilder::finalize",
                    "lld::elf::splitStrings",
                    "lld::elf::MarkLive",
                    "llvm::parallelFor",
                ],
            },
            Program {
                process: "ninja",
                thread: "ninja",
                module: "ninja",
                base: &["Builder::Build", "NinjaMain::RunBuild", "real_main", "main"],
                leaves: [
                    "DepsLog::Load",
                    "State::LookupNode",
                    "StringPiece::Hash",
                    "DependencyScan::RecomputeDirty",
                    "Plan::EdgeFinished",
                    "ManifestParser::Parse",
                    "EvalString::Evaluate",
                    "CanonicalizePath",
                ],
            },
        ],
    ),
];

/// The stack of a system call of a C library's function: the kernel's functions that it ends in, and its entry.
macro_rules! call {
    ($($function:literal $module:literal),* ; $call:literal) => {
        &[$(($function, $module),)* ("do_syscall_64", ""), ("entry_SYSCALL_64_after_hwframe", ""), ($call, "libc.so.6")]
    };
}

/// The number of the path whose function is slower in the newer kernel.
pub const REGRESSED: usize = 0;
/// The number of the path of a lock that is taken with interrupts off.
pub const LOCK: usize = 6;
/// The number of the first path of an interrupt; those after it are of interrupts, too.
pub const INTERRUPTS: usize = 7;
/// For each path, how many per cent of its ticks have interrupts off. The second path of interrupts is a softirq's.
pub const OFF_PERCENT: [u64; PATHS.len()] = [0, 3, 0, 2, 5, 1, 85, 100, 12, 100];

/// The paths that each guest takes.
pub const PATHS: [Path; 10] = [
    Path {
        mode: Mode::Kernel,
        weight: 14,
        functions: &[
            ("copy_page", ""),
            ("wp_page_copy", ""),
            ("do_wp_page", ""),
            ("do_fault", ""),
            ("__handle_mm_fault", ""),
            ("handle_mm_fault", ""),
            ("do_user_addr_fault", ""),
            ("exc_page_fault", ""),
            ("asm_exc_page_fault", ""),
        ],
    },
    Path {
        mode: Mode::Kernel,
        weight: 9,
        functions: &[
            ("clear_page_erms", ""),
            ("get_page_from_freelist", ""),
            ("__folio_alloc", ""),
            ("do_anonymous_page", ""),
            ("__handle_mm_fault", ""),
            ("handle_mm_fault", ""),
            ("exc_page_fault", ""),
            ("asm_exc_page_fault", ""),
        ],
    },
    Path {
        mode: Mode::Kernel,
        weight: 11,
        functions: call!["copy_page_to_iter" "", "filemap_read" "", "ext4_file_read_iter" "[ext4]", "vfs_read" "", "ksys_read" ""; "read"],
    },
    Path {
        mode: Mode::Kernel,
        weight: 7,
        functions: call!["jbd2_journal_dirty_metadata" "[jbd2]", "ext4_mark_iloc_dirty" "[ext4]", "ext4_dirty_inode" "[ext4]",
            "ext4_buffered_write_iter" "[ext4]", "vfs_write" "", "ksys_write" ""; "write"],
    },
    Path {
        mode: Mode::Kernel,
        weight: 10,
        functions: call!["tcp_write_xmit" "", "tcp_push_one" "", "tcp_sendmsg_locked" "", "tcp_sendmsg" "", "sock_write_iter" "",
            "vfs_write" "", "ksys_write" ""; "write"],
    },
    Path {
        mode: Mode::Kernel,
        weight: 6,
        functions: call!["ep_poll" "", "do_epoll_wait" "", "__x64_sys_epoll_wait" ""; "epoll_wait"],
    },
    Path {
        mode: Mode::Kernel,
        weight: 4,
        functions: call!["_raw_spin_lock_irqsave" "", "try_to_wake_up" "", "wake_up_q" "", "futex_wake" "", "do_futex" "", "__x64_sys_futex" ""; "pthread_mutex_unlock"],
    },
    Path {
        mode: Mode::Interrupt,
        weight: 3,
        functions: &[
            ("hrtimer_interrupt", ""),
            ("__sysvec_apic_timer_interrupt", ""),
            ("sysvec_apic_timer_interrupt", ""),
            ("asm_sysvec_apic_timer_interrupt", ""),
        ],
    },
    Path {
        mode: Mode::Interrupt,
        weight: 5,
        functions: &[
            ("virtnet_poll", "[virtio_net]"),
            ("__napi_poll", ""),
            ("net_rx_action", ""),
            ("handle_softirqs", ""),
            ("common_interrupt", ""),
            ("asm_common_interrupt", ""),
        ],
    },
    Path {
        mode: Mode::Interrupt,
        weight: 2,
        functions: &[
            ("virtblk_done", "[virtio_blk]"),
            ("vring_interrupt", "[virtio_ring]"),
            ("__handle_irq_event_percpu", ""),
            ("common_interrupt", ""),
            ("asm_common_interrupt", ""),
        ],
    },
];
