--[[ tell: a worker reports that it runs, with the time of Redis' clock, since the clocks of workers' machines may
differ.

It runs in a full Redis, too.

Flags: allow-oom
Keys: workers
Args: worker row code_field tasks
Returns: nothing
]]

redis.call('HSET', workers, worker, redis.call('TIME')[1] .. ' ' .. row, code_field, tasks)
