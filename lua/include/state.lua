--[[ state: the one reader and the one writer of state lines.

A line is the state, then name=value fields in a fixed order; fields at the layout's default are left out.
]]

--- The fields of a line by name, `state` among them; nil for no line.
local function read_line(line)
  if not line then
    return nil
  end
  local job = {state = line:match('^%l+')}
  for name, value in line:gmatch('(%l+)=(%S+)') do
    job[name] = value
  end
  return job
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

--- The same for the line of a job that is ready, the way nearly all are that were never claimed: what stands before
--- its place in line goes into the line of its claim as it is (`head`), so that it need not be taken apart.
local function read_ready(line)
  local only, place, entered = line:match('^ready task=(%S+) seq=(%d+) since=(%d+)$')
  if only then
    return {state = 'ready', task = only, seq = place, since = entered, head = 'task=' .. only}
  end
  local head, seq, since = line:match('^ready (.*) seq=(%d+) since=(%d+)$')
  if not head or head:find(' claim=', 1, true) then
    return read_line(line)
  end
  local task, rest = head:match('^task=(%S+)(.*)$')
  if not task then
    return read_line(line)
  end
  local job = {state = 'ready', task = task, seq = seq, since = since, head = head}
  if rest ~= '' then
    job.priority = rest:match(' priority=(%l+)')
    job.lane = rest:match(' lane=(%S+)')
  end
  return job
end

--- The same for a job of a lane. What is to be found in its line is known, so a plain search is enough.
local function read_waiting(line, lane, seq)
  local ending = ' seq=' .. seq .. ' since='
  local _, last = line:find(' lane=' .. lane .. ending, 1, true)
  if not last or line:sub(1, 11) ~= 'ready task=' then
    return read_line(line)
  end
  return {state = 'ready', lane = lane, seq = seq, since = line:sub(last + 1), head = line:sub(7, last - #ending)}
end

--- The line of a job that is ready and was read so.
local function write_ready(job)
  if job.head then
    return 'ready ' .. job.head .. ' seq=' .. job.seq .. ' since=' .. job.since
  end
  return write_line(job)
end

--- The line of a job that is claimed: `ending` is its fence, since when and by whom, as they stand in a line.
local function write_running(job, fence, ending)
  if job.head then
    return 'running ' .. job.head .. ' claim=1 fence=' .. fence .. ' seq=' .. job.seq .. ending
  end
  return write_line(job)
end

--- A counter of a job; absent means none yet, or the layout's default.
local function count(job, name)
  return tonumber(job[name]) or DEFAULTS[name] or 0
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
