--[[ lines: returns the state lines of jobs; for a job without a line, the text before the JSON in its value in `jobs`.

No long value is read, since Redis can only read a field as a whole: a job whose value has VALUE_MAX bytes or more has a
line.

Keys: state jobs
Args: id…
Given: LINE_MAX TOO_LONG VALUE_MAX
Returns: LINE… VALUE…
]]

local found, count = {}, #ARGV
for i, id in ipairs(ARGV) do
  local long = redis.call('HSTRLEN', state, id)
  local line = long > LINE_MAX and TOO_LONG .. long or long > 0 and redis.call('HGET', state, id)
  local value = not line and redis.call('HSTRLEN', jobs, id) < VALUE_MAX and redis.call('HGET', jobs, id)
  found[i] = line
  found[count + i] = value and value:match('^[^\n{]*')
end
return found
