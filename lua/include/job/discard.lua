--[[ discard: jobs that go without having been claimed. A plain list keeps the entry of one that was ready, as a
tombstone that claim passes over, so that it costs the same at any depth.

Keys: state jobs scheduled
Later: tombstones
Unread: jobs scheduled
Uses: state(count) meta(fact set_fact read_now) batch(call_many) lane_names(member_of) lane_standing(lane_of)
    lane_members(remove) lane_opening(moved_on)
]]

local ids           -- of jobs that go
local marks         -- their members of `scheduled`, whether they are there or not
local tombstones    -- how many of them leave an entry in a plain list

local function reset()
  ids, marks, tombstones = {}, {}, 0
end

--- A job goes. If its lane was open, what stood behind it may be served now.
local function discard(id, job)
  if #ids == 0 then
    check_keys()
  end
  ids[#ids + 1] = id
  marks[#marks + 1] = 'job|' .. id
  if job.state == 'ready' and job.lane then
    local lane = lane_of(job.lane)
    local was_open = lane.where == 'open'
    remove(lane, member_of(lane, count(job, 'seq'), id))
    if was_open then
      moved_on(lane)
    end
  elseif job.state == 'ready' then
    tombstones = tombstones + 1
    read_now('tombstones')
  end
end

local function write_discards()
  call_many('HDEL', state, ids)
  call_many('HDEL', jobs, ids)
  call_many('ZREM', scheduled, marks)
  if tombstones > 0 then
    set_fact('tombstones', fact('tombstones') + tombstones)
  end
end
