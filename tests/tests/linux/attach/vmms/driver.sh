# root_folder: what the guests of microVM products have, in /run/root.
root_folder() {
    mkdir -p /run/root/bin /run/root/dev /run/root/etc /run/root/proc /run/root/sys /run/root/tmp
    cp /bin/busybox /lab/calls /lab/plain /run/root/bin/
    for applet in sh dd sleep; do ln -s busybox "/run/root/bin/$applet"; done
    cp /etc/passwd /etc/group /run/root/etc/
}

# blob FILE: moves it into the image. Its digest and its size are then those.
blob() {
    digest=sha256:$(sha256sum "$1" | cut -d ' ' -f 1)
    size=$(wc -c <"$1")
    mv "$1" "/run/image/blobs/sha256/${digest#*:}"
}

# image: makes /run/image of the root folder, in the form of the OCI's image layout.
image() {
    type=application/vnd.oci.image
    mkdir -p /run/image/blobs/sha256
    tar -C /run/root -cf /run/layer .
    blob /run/layer
    layers='[{"mediaType":"'$type'.layer.v1.tar","digest":"'$digest'","size":'$size'}]'
    echo '{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/sh"],"Env":["PATH=/bin"]},
        "rootfs":{"type":"layers","diff_ids":["'"$digest"'"]}}' >/run/config
    blob /run/config
    echo '{"schemaVersion":2,"mediaType":"'$type'.manifest.v1+json","layers":'"$layers"',
        "config":{"mediaType":"'$type'.config.v1+json","digest":"'"$digest"'","size":'"$size"'}}' >/run/manifest
    blob /run/manifest
    echo '{"schemaVersion":2,"manifests":[
        {"mediaType":"'$type'.manifest.v1+json","digest":"'"$digest"'","size":'"$size"'}]}' >/run/image/index.json
    echo '{"imageLayoutVersion":"1.0.0"}' >/run/image/oci-layout
}

# Its program looks for the library with the kernel in a folder beside its own.
microsandbox() {
    root_folder
    cp /lab/work /run/root/bin/
    chmod +x /lab/bin/msb
    prepare guest
    /lab/bin/msb run --name guest --no-net --no-stdin --cpus 1 --memory 512M /run/root -- /bin/sh /bin/work \
        >"$LAB_OUT/guest.stdout" 2>"$LAB_OUT/guest.stderr" 3>&- &
    machine=$!
    # It keeps standard output back while that is a file, but logs each piece of it at once.
    log=/root/.microsandbox/sandboxes/guest/logs/exec.log
    until [ -e $log ]; do
        is_over && fail 92 "over before its guest had started"
        usleep 50000
    done
    tail -n +1 -f $log | while read -r line; do
        piece=${line#*\"s\":\"stdout\",\"d\":\"}
        [ "$piece" = "$line" ] || printf %b "${piece%\",\"id\"*}"
    done >"$console" 3>&- &
}

boxlite() {
    root_folder
    image
    prepare guest
    PYTHONPATH=/lab:/lab/minimal:/lab/stdlib:/lab/stdlib/lib-dynload /lab/python3.11 /lab/boxlite.py \
        >>"$console" 2>"$LAB_OUT/guest.stderr" 3>&- &
    machine=$!
    says 'workload running'
    # Programs run in a pid namespace. What starts them, in the guest, logs their pids outside of it, in their order.
    set -- $(sed -n 's/.*exec: build completed.*pid[^=]*=[^0-9]*0m\([0-9]*\).*/\1/p' /run/boxlite/boxes/*/logs/console.log)
    echo "pid dd $1
pid calls $2
pid plain $3" >>"$console"
}

firecracker() {
    chmod +x /lab/firecracker
    echo '{"boot-source": {"kernel_image_path": "/lab/vmlinux", "initrd_path": "/lab/guest.cpio",
        "boot_args": "console=ttyS0 '"$quick"'"},
        "machine-config": {"vcpu_count": 2, "mem_size_mib": 512}, "cpu-config": "/run/cpu.json", "drives": []}' \
        >/run/guest.json
    # The lab's processor has no XSAVE, so KVM has no KVM_CAP_XCRS.
    echo '{"kvm_capabilities": ["!56"]}' >/run/cpu.json
    prepare guest
    /lab/firecracker --no-api --config-file /run/guest.json --id guest \
        >"$console" 2>"$LAB_OUT/guest.stderr" 3>&- &
    machine=$!
}

case $(cat /lab/vmm) in
Microsandbox) microsandbox ;;
Boxlite) boxlite ;;
Firecracker) firecracker ;;
QemuMicrovm) qemu guest 2 '' -M microvm -m 512 ;;
NewerQemu)
    qemu_program=/lab/qemu/qemu-system-x86_64
    qemu guest 2 '' -L /lab/qemu -M q35 -m 512
    ;;
esac
says 'workload running'
kvmprof list --json >"$LAB_OUT/list.json"
vmm=$(sed 's/"labels": *{[^}]*}//g' "$LAB_OUT/list.json" | tr '{' '\n' | sed -n '/"attachable": *true/ s/.*"pid": *\([0-9]*\).*/\1/p')
tr '\0' ' ' <"/proc/$vmm/cmdline" >"$LAB_OUT/cmdline"
attach_both "$vmm"
both 500
detach_both

# beats: how many seconds the guest has counted.
beats() { grep -c '^beat' "$console"; }
before=$(beats)
until [ "$(beats)" -ge $((before + 3)) ]; do
    is_over && fail 91 "over after kvmprof has let it go"
    alive "$(beats) beats"
    usleep 200000
done
