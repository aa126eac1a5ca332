# Two modules have the same place one after the other, and each works for processes of its own.
for module in /modules/*.ko; do
    case $module in
    *-brd.ko | *-null_blk.ko) ;;
    *) insmod "$module" ;;
    esac
done

# work MODULE DEVICE OPTION...: a process reads the module's disk while the module is there.
work() {
    module=$1 device=$2
    shift 2
    insmod /modules/*-"$module".ko "$@"
    while read -r name size users by state place rest; do
        [ "$name" = "$module" ] && echo "place $module $place"
    done </proc/modules
    dd if="$device" of=/dev/null bs=4k count=4000 iflag=direct 2>/dev/null &
    echo "process $module $!"
    wait $!
    rmmod "$module"
}

while :; do
    work brd /dev/ram0 rd_nr=1 rd_size=65536
    work null_blk /dev/nullb0 nr_devices=1
done &
# BPF programs come and go, too.
echo 1 >/proc/sys/net/core/bpf_jit_kallsyms
while :; do
    for name in weave dye; do
        compiles $name 40 &
        echo "compiled $name $!"
        wait $!
    done
done &
echo modules come and go
read -r word
poweroff -f
