boot() {
    name=$1 kernel=$2 cmdline=$3
    shift 3
    start "$name" --kernel "/lab/$kernel" --initrd /lab/guest.cpio \
        --cmdline "console=ttyS0 $quick $cmdline" "$@"
    says ready
    gather s --all --hz 80
    sampled 150
    stop_gathering
    tell off
    ended
}

grep -q '^flags.* la57' /proc/cpuinfo && echo 5 >"$LAB_OUT/host-levels" || echo 4 >"$LAB_OUT/host-levels"
boot elf vmlinux-without-pvh '' --memory 128M
boot pvh vmlinux '' --memory 5G --cpus 4
boot image vmlinuz '' --memory 512M --cpus 2
boot shallow vmlinuz no5lvl --memory 256M
