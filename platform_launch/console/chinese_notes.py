"""The notes beside an answer of ``why`` in Chinese, by the ids of platform_launch/why/note.py."""

from __future__ import annotations

NOTES = {
    # Of the event that answers.
    "same-on-one": "另有 {count} 个进程相同",
    "same-on-others": "另有 {count} 个进程相同",
    "raised-handling": "在处理 {exception} 时抛出",
    "ended-as": "进程最终以 {exception} 结束",
    "oom-kills": "运行期间 cgroup 记录了 {count} 次因内存不足的杀死",
    # How processes ended.
    "process-ended": "{place} 的进程结束，退出码 {code}",
    "some-process-ended": "有进程结束，退出码 {code}",
    "task-left-out": "只有任务 {task} 没有随其他任务一起被结束：失败的多半是它",
    "tasks-ended": "因错误结束：{tasks}",
    "tasks-ended-cut": "因错误结束：{tasks}，以及另外 {more} 处",
    "exited": "{host} 上的 {tasks}（退出码 {code}）",
    "killed": "{host} 上的 {tasks}（信号 {signal}）",
    # Other events.
    "showed-first": "最初表现为：{event}",
    "went-on-until": "其他进程继续运行，直到：{event}",
    "perhaps": "也许是：{event}",
    "also": "这些日志里还有：{event}",
    "order-unknown": "日志没有说明哪一个在先；还有 {event}",
    "consequence-earlier": "按时钟更早，但通常是后果：{event}",
    "error-above": "它附近有一条错误（{log}:{line}）：{text}",
    "last-words": "结束前的最后一行（{log}:{line}）：{text}",
    "event": "{title}（{log}:{line}）",
    "event-on": "{title}，{place}（{log}:{line}）",
    # What the training survived, and what was not read.
    "errors-survived": "更早的 {count} 个错误之后仍有输出，训练当时在继续",
    "output-follows": "此后还有 {count} 行输出：进程可能没有因此结束",
    "lines-left-out": "{log} 中充满 {heads}：这样的行只读了最前和最后的部分",
    "tracebacks-left-out": "{log} 中充满回溯：没有全部读取",
    "no-end": "{log}：没有记录说明这次启动已结束：它仍在运行，或启动器被杀死（SIGKILL），或节点已丢失",
    # Who is behind.
    "started-fewer": "{ranks} 启动了 {count} 个集合通信，其他 rank 启动了 {others} 个",
    "timed-out-behind": "{ranks} 在第 {number} 个（{operation}）超时，其他 rank 在第 {others} 个",
    "ran-another": "{ranks} 执行了 {operation}；{other_ranks} 执行了 {others}",
    "no-timeout": "{ranks} 没有报告超时：请先检查那里",
    "none-completed": "没有完成任何一个集合通信：各 rank 之间始终没有连通（网络、InfiniBand、GPU 互访），"
    "或者其中某个 GPU 或节点有故障",
    "came-twice": "{size} 个 rank 中，{ranks} 到了两次：有两个节点把自己当作同一个",
    "start-not-reported": "{size} 个 rank 中，没有报告启动的有：{ranks}",
    "rank": "rank {numbers}",
    "ranks": "rank {numbers}",
    "ranks-cut": "rank {numbers} 以及另外 {more} 个",
}
