--[[ state: reads a state line into the record of a job, and writes it.

A line is the state, then name=value fields in a fixed order. A field that has the layout's default is left out.
include/job/stored_lines says which jobs have a line in `state`.

For speed, some files know the form of a line without its record: enqueue and claim/claimed_jobs write the lines of new
and of claimed jobs; include/ends/fences looks for a fence; claim/fresh_lines and claim/plain_jobs match the line of a
job that was never claimed; cap looks for a task. They must change together with this file.
]]

--- Return the fields of a line by name, with `state` among them; nil for no line. A line that is longer than scripts
--- write is not parsed: its state is unknown then, so no call moves the job.
local function read_line(line)
  if not line then
    return nil
  end
  if #line > LINE_MAX then
    return {state = 'unreadable'}
  end
  local job = {state = line:match('^%l+')}
  -- The pattern begins with the space before a field. Without it, Lua would look for a field from every letter of a
  -- long word.
  for name, value in line:gmatch(' (%l+)=(%S+)') do
    job[name] = value
  end
  return job
end

--- Return the value of a field in a line, up to the next space; nil if the line does not have it. `mark` is ` name=`.
--- The mark is found as plain text: Lua would try a pattern at each byte of the line.
local function field_in(line, mark)
  local _, at = line:find(mark, 1, true)
  return at and line:match('^%S+', at + 1)
end

--- Return the line of a job.
local function write_line(job)
  local parts = {job.state}
  for i = 1, #STATE_FIELDS do
    local value = job[STATE_FIELDS[i]]
    if value then
      parts[#parts + 1] = STATE_FIELDS[i] .. '=' .. value
    end
  end
  return table.concat(parts, ' ')
end

--- Return the lane in a line; nil if it names none.
local function lane_in(line)
  local _, at = line:find(' lane=', 1, true)
  if not at then
    return nil
  end
  return line:sub(at + 1, (line:find(' ', at, true) or 0) - 1)
end

--- Return a counter of a job; 0, or the layout's default, if the field is missing or was damaged by a client.
local function count(job, name)
  return whole_number(job[name]) or DEFAULTS[name] or 0
end

--- Return the number of a job's priority, 0 (critical) to 3 (low); the default if the job has none.
local function rank(job)
  return PRIORITY_RANK[job.priority] or PRIORITY_RANK[DEFAULT_PRIORITY]
end

--- Return whether a claim is in force.
local function is_claimed(job)
  return job.state == 'running' or job.state == 'cancelling'
end

--- Remove the fields of a claim from a record.
local function drop_claim(job)
  job.fence, job.by = nil, nil
end
