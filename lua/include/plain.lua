--[[ plain: the plain jobs of a priority, in order: those that return, the list, those that join.

Entries of the list that lead nowhere (the job was cancelled, or came back by another entry) are passed over, `sweep_max`
of them per call. Steps begin small and double, so that large payloads, which the byte bound leaves behind, are not read.

Keys: state jobs ready
Later: tombstones
Uses: state sweep batch ready meta digits
]]

local FRESH = {}

--- How the line of a job of this priority looks that was never claimed, the way nearly all do. What stands before its
--- place in line goes into the line of its claim as it is.
local function fresh_line(priority)
  for name, number in pairs(PRIORITY_RANK) do
    local said = name == DEFAULT_PRIORITY and '' or ' priority=' .. name
    FRESH[number] = '^ready (task=%S+' .. said .. ') seq=(%d+) since=%d+$'
  end
  return FRESH[priority]
end

local list_lengths = nil
local skipped = 0          -- entries that led nowhere

local source_priority, source_returning, source_joining = nil, nil, nil
local next_returning, next_joining = 1, 1
local list_read, list_step = 0, 4   -- entries passed over or given out; how many to read next
local list_ids, list_lines, list_specs, list_at = nil, nil, nil, 1
local plain_kind = nil     -- what `peek_plain` has found
local plain_id, plain_spec, plain_head, plain_seq, plain_job = nil, nil, nil, nil, nil

local function by_age(a, b)
  return count(a, 'seq') < count(b, 'seq')
end

--- Begin with a priority. False if it has no plain jobs.
local function open_source(priority)
  source_priority = priority
  source_returning, source_joining = returning[priority], joining[priority]
  if list_lengths[priority] == 0 and not source_returning and not source_joining then
    return false
  end
  if source_returning then
    table.sort(source_returning, by_age)
  end
  if source_joining then
    table.sort(source_joining, by_age)
  end
  next_returning, next_joining = 1, 1
  list_read, list_step, list_ids, list_at = 0, 4, nil, 1
  plain_kind = nil
  return true
end

--- Whether the entry of the list that comes next leads to a job; if so it has been read.
local function read_entry(most)
  if not list_ids or list_at > #list_ids then
    local last = list_read + math.min(most, list_step) - 1
    list_ids = redis.call('LRANGE', ready[source_priority], digits(list_read), digits(last))
    list_step = math.min(list_step * 2, 1000)
    list_lines, list_specs, list_at = read_many(state, list_ids), read_many(jobs, list_ids), 1
  end
  local id = list_ids[list_at]
  local line = list_lines[list_at]
  if not line or taken[id] then
    return false
  end
  plain_head, plain_seq = line:match(FRESH[source_priority] or fresh_line(source_priority))
  if not plain_head then
    plain_job = read_line(line)
    if plain_job.state ~= 'ready' or plain_job.lane or rank(plain_job) ~= source_priority then
      return false
    end
    plain_job.id, plain_seq = id, plain_job.seq
  else
    plain_job = nil
  end
  plain_id, plain_spec = id, list_specs[list_at]
  return true
end

local function found_job(kind, job)
  plain_kind, plain_job = kind, job
  plain_id, plain_spec, plain_head, plain_seq = job.id, nil, nil, job.seq
  return kind
end

--- Read the plain job that comes next, into plain_id and so on. `most` more can be used. Returns nil if there is none.
local function peek_plain(most)
  if plain_kind then
    return plain_kind
  elseif source_returning and source_returning[next_returning] then
    return found_job('returning', source_returning[next_returning])
  end
  local length = list_lengths[source_priority]
  while list_read < length and skipped <= sweep_max do
    if read_entry(most) then
      plain_kind = 'list'
      return plain_kind
    end
    skipped = skipped + 1
    foresee('tombstones')
    list_read = list_read + 1
    list_at = list_at + 1
  end
  if list_read == length and source_joining and source_joining[next_joining] then
    return found_job('joining', source_joining[next_joining])
  end
  return nil
end

--- Go on behind it.
local function pass_plain()
  if plain_kind == 'list' then
    taken[plain_id] = true
    list_at = list_at + 1
    list_read = list_read + 1
  elseif plain_kind == 'returning' then
    next_returning = next_returning + 1
  else
    next_joining = next_joining + 1
  end
  plain_kind = nil
end

--- What stays behind in the sources of this priority: their number.
local heads, tails, passed = {}, {}, {}
local function close_source()
  local left = list_lengths[source_priority] - list_read
  passed[source_priority] = list_read
  for i = next_returning, source_returning and #source_returning or 0 do
    local job = source_returning[i]
    local list = heads[source_priority] or {}
    heads[source_priority] = list
    list[#list + 1] = {job.id, count(job, 'seq')}
    left = left + 1
  end
  for i = next_joining, source_joining and #source_joining or 0 do
    local list = tails[source_priority] or {}
    tails[source_priority] = list
    list[#list + 1] = source_joining[i].id
    left = left + 1
  end
  return left
end

--- Write where plain jobs stand.
local function write_plain()
  for priority = 0, 3 do
    if (passed[priority] or 0) > 0 then
      redis.call('LTRIM', ready[priority], digits(passed[priority]), '-1')
    end
    if heads[priority] then
      return_ready(priority, heads[priority])
    end
    call_many('RPUSH', ready[priority], tails[priority])
  end
  if skipped > 0 then
    set_fact('tombstones', math.max(0, fact('tombstones') - skipped))
  end
end
