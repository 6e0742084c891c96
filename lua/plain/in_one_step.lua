--[[ in_one_step: plain commands carried out in one step, in a full Redis, too. An error takes the place of its answer.

MULTI would be one step as well; but Redis 7.0 queues no command while it is full, and refuses those that write.

KEYS has the key of each command, and ARGV its name, how many arguments follow, and these.

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
