cp /lab/series "$LAB_OUT"
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 100 \
    --cmdline 'console=ttyS0 quiet panic=-1'
ended

start limited --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --guest-access profil \
    --cmdline 'console=ttyS0 quiet panic=-1 limited'
ended
