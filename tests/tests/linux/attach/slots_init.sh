# A guest whose memory grows and shrinks while a process is busy, and another one runs in what was added. A third one works in a module.
mount -t sysfs none /sys
for module in /modules/*.ko; do
    case $module in
    # A disk in memory, of 1 TiB: what was never written takes no memory, and one process reads for as long as the guest runs.
    *brd.ko) insmod "$module" rd_nr=1 rd_size=1073741824 ;;
    *) insmod "$module" ;;
    esac || echo "no $module"
done
sed -n 's/^\([0-9a-f]*\) t \(brd_[a-z_]*\)\t\[brd\]$/function \1 \2/p' /proc/kallsyms
one & one=$!
echo "pid one $one"
# What is read directly goes through the module each time.
dd if=/dev/ram0 of=/dev/null bs=64k iflag=direct 2>/dev/null & dd=$!
echo "pid dd $dd"

# total: the guest's memory, in KiB.
total() { sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo; }
# movable: the pages that are used in the memory that was added, which is all of this kind.
movable() {
    sed -n '/zone *Movable/,$ { s/^ *pages free *\([0-9]*\)/\1/p; s/^ *managed *\([0-9]*\)/\1/p }' /proc/zoneinfo |
        tr '\n' ' ' | { read -r free managed rest; echo $((managed - free)); }
}
# until_total TEST KIB: waits until the guest has more or less memory.
until_total() { until [ "$(total)" "$1" "$2" ]; do usleep 50000; done; }

echo workload running
while read -r word size; do
    case $word in
    grown)
        until_total -gt "$size"
        two & two=$!
        echo "pid two $two"
        # What is written to files in memory is of that kind, too: the host has to bring these pages.
        mkdir -p /more
        mount -t tmpfs none /more
        files=0
        until [ "$(movable)" -gt 2048 ] || [ $files -eq 24 ]; do
            head -c 4194304 /dev/zero >/more/$files
            files=$((files + 1))
        done
        echo "grown $(total) $(movable)"
        ;;
    leave)
        kill $two
        wait $two
        rm /more/*
        echo left
        ;;
    shrunk)
        until_total -lt "$size"
        echo "shrunk $(total)"
        ;;
    over) poweroff -f ;;
    esac
done
