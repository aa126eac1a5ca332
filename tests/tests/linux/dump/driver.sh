# dump_it NAME GUEST OPTION...: dumps a guest, which goes on, and ends it.
dump_it() {
    says 'workload running'
    guest=$2 dumped=$1
    shift 2
    kvmprof dump "$guest" --output "$LAB_OUT/$dumped.core" "$@" 2>"$LAB_OUT/$dumped.dump"
    echo $? >"$LAB_OUT/$dumped.dump.status"
    done_at dumped
    tell over
    ended
}

start own --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 192M \
    --cmdline "console=ttyS0 $quick"
dump_it own "$machine" --pause

# Its user mode has page tables of its own, and it runs on while it is dumped.
qemu qemu 2 pti=on -M q35 -m 192
dump_it qemu qemu
