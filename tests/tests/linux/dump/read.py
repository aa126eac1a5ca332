"""Prints what drgn finds in a dump, as lines of a word and its values: read.py CORE VMLINUX"""

import sys

import drgn
from drgn.helpers.linux.cpumask import for_each_online_cpu
from drgn.helpers.linux.pid import find_task, for_each_task
from drgn.helpers.linux.sched import cpu_curr

core, vmlinux = sys.argv[1:]
program = drgn.Program()
program.set_core_dump(core)
program.load_debug_info([vmlinux])
print("release", program["init_uts_ns"].name.release.string_().decode())
print("cpus", len(list(for_each_online_cpu(program))))
for task in for_each_task(program):
    print("task", task.pid.value_(), task.comm.string_().decode())
for cpu in for_each_online_cpu(program):
    task = cpu_curr(program, cpu)
    name = task.comm.string_().decode()
    # By the registers of its vCPU.
    print("running", cpu, task.pid.value_(), name, program.stack_trace(task)[0].pc)
# A structure of a task, and the stacks of all that don't run.
for task in for_each_task(program):
    running = task.on_cpu.value_()
    if running:
        continue
    names = [frame.name or "?" for frame in program.stack_trace(task)]
    print("stack", task.pid.value_(), *names)
print("init", find_task(program, 1).mm.mm_users.counter.value_())
