--[[ state: reads a state line into the record of a job, and writes it.

A line is the state, then name=value fields in a fixed order; fields at the layout's default are left out. Which job has one:
include/job/stored_lines.

For speed, some files know the form of a line without its record: enqueue and claim/claimed_jobs write the lines of new and of
claimed jobs; include/ends/fences looks for a fence, claim/fresh_lines and claim/plain_jobs match the line of a job that was never
claimed, cap looks for a task. They change together with this file.
]]

--- The fields of a line by name, `state` among them; nil for no line. One that is longer than scripts write is not taken apart: its
--- state is unknown then, so no call moves the job.
local function read_line(line)
  if not line then
    return nil
  end
  if #line > LINE_MAX then
    return {state = 'unreadable'}
  end
  local job = {state = line:match('^%l+')}
  -- Each field begins behind a space: without it Lua would look for one from every letter of a long word on.
  for name, value in line:gmatch(' (%l+)=(%S+)') do
    job[name] = value
  end
  return job
end

--- Return the value of a field in a line, up to the next space; nil if the line does not have it. `mark` is ` name=`.
--- A pattern that begins with the mark would be tried at each byte of the line.
local function field_in(line, mark)
  local _, at = line:find(mark, 1, true)
  return at and line:match('^%S+', at + 1)
end

--- The line of a job.
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

--- A counter of a job; absent means none yet, or the layout's default, and so does what a client has damaged.
local function count(job, name)
  return whole_number(job[name]) or DEFAULTS[name] or 0
end

--- 0 (critical) to 3 (low); the default for a job that does not say.
local function rank(job)
  return PRIORITY_RANK[job.priority] or PRIORITY_RANK[DEFAULT_PRIORITY]
end

--- True if a claim is in force.
local function is_claimed(job)
  return job.state == 'running' or job.state == 'cancelling'
end

--- End a claim in the record: what only a claimed job has.
local function drop_claim(job)
  job.fence, job.by = nil, nil
end
