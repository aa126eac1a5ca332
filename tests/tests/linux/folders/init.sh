mount -t sysfs none /sys
echo 1 >/proc/sys/kernel/printk
for module in /modules/*.ko; do insmod "$module"; done
mkdir /rw /ro
mount -t virtiofs work /rw && mount -t virtiofs other /ro && echo "both are mounted"
echo "sum $(sha256sum </rw/file | cut -d ' ' -f 1)"
echo "sum $(sha256sum </ro/file | cut -d ' ' -f 1)"
grep -E 'virtio[0-9]' /proc/interrupts | sed 's/^/interrupts /'
if [ ! -e /rw/was-here ]; then
    touch /rw/was-here
    # Once more without an orderly end of anything.
    reboot -f
fi
mkdir /rw/folder && echo "from the guest" >/rw/folder/file && mv /rw/folder/file /rw/moved && rmdir /rw/folder && echo "written"
for change in "touch /ro/new" "rm /ro/file" "chmod 777 /ro/file"; do
    $change 2>/dev/null || echo "refused: $change"
done
# The kernel keeps what was read once.
cat /rw/calls >/dev/null
/rw/calls & calls=$!
echo "calls runs"
read -r _
kill $calls
umount /rw && mount -t virtiofs work /rw && echo "mounted again"
echo "may be killed"
read -r _
# Nobody answers any more.
ls /rw >/dev/null 2>&1 &
echo "sum $(sha256sum </ro/file | cut -d ' ' -f 1)"
echo "goes on"
read -r _
