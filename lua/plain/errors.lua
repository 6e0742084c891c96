--[[ errors: returns the errors that jobs died of, without the jobs' arguments; nothing for a job without an error.

Keys: jobs
Args: id…
Returns: ERROR…
]]

local found = {}
for i, id in ipairs(ARGV) do
  local value = redis.call('HGET', jobs, id)
  local ends = value and value:sub(1, 6) == 'error=' and value:find('\n', 1, true)
  found[i] = ends and value:sub(1, ends) or false
end
return found
