# What the inits of Linux guests share.
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc

# accounts NAME: what the guest's kernel knows now: of time, and of its tasks but for its own threads.
accounts() {
    echo "accounts $1"
    grep '^cpu' /proc/stat
    echo "uptime $(cat /proc/uptime)"
    for process in /proc/[0-9]*; do
        # It may have gone meanwhile.
        { read -r line <"$process/stat"; } 2>/dev/null || continue
        set -- ${line##*) }
        [ "$2" = 2 ] || echo "task ${line%%)*}) $2 $3 ${12} ${13}"
    done
    echo "last pid $(cut -d ' ' -f 5 /proc/loadavg)"
    echo "accounts end"
}

# processes: as its own ps lists them.
processes() {
    echo "ps begin"
    ps -o pid,pgid,comm
    echo "ps end"
}
