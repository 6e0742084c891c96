--[[ signalling: decides the outcome of each record of a `signal`. Everything is decided before anything is written.

Keys: jobs state ready scheduled boxes
Meta: audit durable
Later: backlog_bytes backlog_max_bytes
Args: each each_count column by why value_max
Unread: jobs ready scheduled
Uses: call(now now_text) parts(run_parts) meta(facts set_fact) emit(emit) state(read_line write_line field_in count rank)
    stored_lines(read_lines) lane_states(lane_of) lane_members(put) lane_write(check_lanes write_lanes)
    ready(return_ready) wake(wake_needed) batch(call_many) digits(digits)
    box(read_header write_header entry_field mail_field) ripe(signal_of read_wait look_for_ripe) parking(unpark)
]]

local MAIL_MAX, BYTES_MAX = 10000, 16777216
local OF_CHILD = '^rq_core%.child%.'   -- the beginning of the name of a signal that a child has ended

local met        -- id → what this call knows of a job: its record, its box, whether the line changes; false: no such job
local order      -- the jobs whose boxes change, in order
local written    -- fields of `boxes` with their values
local signalled, woken   -- the events' parts about each signal and job
local returning  -- by priority: {id, seq} of jobs that return to a plain list

local function reset()
  met, order, written, signalled, woken = {}, {}, {}, {}, {}
  returning = {[0] = {}, {}, {}, {}}
end

local function check_signals()
  check_keys()
end

--- Return whether Redis has lost a box, or its last entry or signal, which a restore writes last.
local function is_box_lost(life, header, entries, mail)
  return not header
    or entries > 0 and redis.call('HEXISTS', boxes, entry_field(life, entries)) == 0
    or mail > 0 and redis.call('HEXISTS', boxes, mail_field(life, digits(mail))) == 0
end

--- Return what this call knows of a job; false if Redis does not have the job.
local function meet(id, line, life)
  local found = met[id]
  if found == nil then
    local job = read_line(line or nil)
    found = false
    if job and job.task then
      found = {id = id, job = job, lists = {}, is_new = not job.life}
      job.life = job.life or life
      local header = not found.is_new and redis.call('HGET', boxes, job.life)
      found.entries, found.bytes, found.mail = read_header(header)
      found.is_lost = not found.is_new and is_box_lost(job.life, header, found.entries, found.mail)
    end
    met[id] = found
  end
  return found
end

--- Return the signals of a name that wait, as text; empty without any.
local function list_of_name(found, name)
  local list = found.lists[name]
  if not list then
    list = redis.call('HGET', boxes, mail_field(found.job.life, name)) or ''
    found.lists[name] = list
  end
  return list
end

--- Return the entry with which a parked job waits for signals of a name, as text; nil if it does not wait for them.
local function entry_that_waits(job, name)
  for mark in (job.waits or ''):gmatch('%d+') do
    local entry, kind = read_wait(redis.call('HGET', boxes, job.life .. '|' .. mark))
    if kind == 'waits' and signal_of(entry) == name then
      return mark
    end
  end
  return nil
end

--- Let a parked job come back to its place in line.
local function let_come_back(found, entry)
  local id, job = found.id, found.job
  woken[#woken + 1] = '["' .. id .. '",' .. entry .. ']'
  unpark(id, job)
  found.is_woken = true
  job.state, job.since = 'ready', now
  if job.lane then
    put(lane_of(job.lane), count(job, 'seq'), id)
  else
    local list = returning[rank(job)]
    list[#list + 1] = {id, count(job, 'seq')}
    wake_needed()
  end
end

--- Wake a job that is parked, although a signal for which it waits is there: a broken script left it so. Returns the
--- outcome.
local function look_again(found)
  local job = found.job
  local _, entry = look_for_ripe(job.life, job.state == 'parked' and job.waits or '')
  if not entry or found.is_lost then
    return 'waits', '-'
  elseif not found.is_changed then
    found.is_changed = true
    order[#order + 1] = found
  end
  let_come_back(found, entry)
  return 'woken', '-'
end

--- Return whether a parent with this line and this box is parked, and waits for other children only. Most signals of
--- children come to such a parent, so neither its record nor its header is read.
local function waits_for_others(line, name, life)
  if line:sub(1, 7) ~= 'parked ' or field_in(line, ' life=') ~= life then
    return false
  end
  for mark in (field_in(line, ' waits=') or ''):gmatch('%d+') do
    local entry = redis.call('HGET', boxes, life .. '|' .. mark)
    if entry and entry:find(name, 1, true) == 1 then
      return false   -- perhaps for this child
    end
  end
  return true
end

--- Carry a record out. Returns its outcome, and the signal's number.
local function send(i, line)
  local id, name, key, life, digest, value = each(i)
  local is_of_child = name:find(OF_CHILD)
  if is_of_child and line and met[id] == nil and waits_for_others(line, name, life) then
    return 'waits', '-'   -- the parent looks at all its children when it goes on
  end
  local found = meet(id, line, life)
  if not found or is_of_child and (found.is_new or found.job.life ~= life) then
    return 'gone', '-'
  end
  if name == '' then
    return look_again(found)
  end
  local job = found.job
  local entry = job.state == 'parked' and entry_that_waits(job, name)
  if is_of_child and job.state == 'parked' and not entry then
    return 'waits', '-'
  end
  local key_field = job.life .. '=' .. key
  local known = key ~= '' and (found.lists[key_field] or redis.call('HGET', boxes, key_field))
  if known then
    return 'known', known
  elseif found.is_lost then
    return 'lost', '-'
  elseif found.mail >= MAIL_MAX or found.bytes + #value > BYTES_MAX then
    return 'full', '-'
  end
  if not found.is_changed then
    found.is_changed = true
    order[#order + 1] = found
  end
  found.mail, found.bytes = found.mail + 1, found.bytes + #value
  local mark = digits(found.mail)
  local list = list_of_name(found, name)
  found.lists[name] = list == '' and mark or list .. ' ' .. mark
  local head = name .. ' at=' .. now_text .. ' digest=' .. digest
  written[#written + 1], written[#written + 2] = mail_field(job.life, name), found.lists[name]
  written[#written + 1] = mail_field(job.life, mark)
  written[#written + 1] = (key ~= '' and head .. ' key=' .. key or head) .. '\n' .. value
  if key ~= '' then
    found.lists[key_field] = mark
    written[#written + 1], written[#written + 2] = key_field, mark
  end
  local is_logged = facts.audit == 'on' and #value <= value_max
  signalled[#signalled + 1] = '["' .. id .. '","' .. job.life .. '",' .. mark .. ',"' .. name .. '",' ..
    (key ~= '' and '"' .. key .. '"' or 'null') .. ',' .. digits(#value) .. ',"' .. digest .. '"' ..
    (is_logged and ',' .. cjson.encode(value) or '') .. ']'
  if entry then
    let_come_back(found, entry)
    return 'woken', mark
  end
  return 'sent', mark
end

--- Decide about all records. Returns the answer.
local function decide_signals()
  local lines = read_lines(column(1))
  local answer = {}
  for i = 1, each_count do
    local outcome, mark = send(i, lines[i])
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = digits(i), outcome, mark
  end
  if #order > 0 and not facts.durable then
    set_fact('durable', '1')
  end
  check_lanes()
  run_parts('check')
  return answer
end

local function write_signals()
  emit('signalled', now, by, signalled, why)
  emit('woken', now, by, woken, why)
  run_parts('write')
  local lines, undue = {}, {}
  for i = 1, #order do
    local found = order[i]
    local job = found.job
    written[#written + 1] = job.life
    written[#written + 1] = write_header(found.id, found.entries, found.bytes, found.mail)
    if found.is_new or found.is_woken then
      lines[#lines + 1], lines[#lines + 2] = found.id, write_line(job)
    end
    if found.is_woken then
      undue[#undue + 1] = 'job|' .. found.id
    end
  end
  call_many('HSET', boxes, written)
  call_many('HSET', state, lines)
  call_many('ZREM', scheduled, undue)
  for priority = 0, 3 do
    return_ready(priority, returning[priority])
  end
  write_lanes()
end
