# The common part of the inits of Linux guests.
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
# The kernel's messages, as of a slow lab's, would come into the middle of lines.
echo 1 >/proc/sys/kernel/printk

# accounts NAME: prints what the guest's kernel knows now of time, and of its tasks except for its own threads.
accounts() {
    echo "accounts $1"
    grep '^cpu' /proc/stat
    echo "uptime $(cat /proc/uptime)"
    for process in /proc/[0-9]*; do
        # The task may have ended meanwhile.
        { read -r line <"$process/stat"; } 2>/dev/null || continue
        set -- ${line##*) }
        [ "$2" = 2 ] || echo "task ${line%%)*}) ${12} ${13}"
    done
    echo "last pid $(cut -d ' ' -f 5 /proc/loadavg)"
    echo "accounts end"
}

# processes: prints the processes that the guest's own ps lists.
processes() {
    echo "ps begin"
    ps -o pid,pgid,comm
    echo "ps end"
}
