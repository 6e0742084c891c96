--[[ in_one_step: carries out plain commands in one step, even in a full Redis. A command that fails has its error in
the place of its answer.

MULTI would also be one step. But a full Redis 7.0 queues no command, and refuses commands that write.

KEYS has the key of each command; ARGV has its name, the number of its further arguments, and these arguments.

Flags: allow-oom
Args: {NAME COUNT ARGUMENT…}…
Returns: ANSWER…
]]

local replies, at = {}, 1
for i, key in ipairs(KEYS) do
  local rest = tonumber(ARGV[at + 1])
  replies[i] = redis.pcall(ARGV[at], key, unpack(ARGV, at + 2, at + 1 + rest))
  at = at + 2 + rest
end
return replies
